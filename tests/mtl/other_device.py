"""A device that is not the CPU, for machines without a GPU.

Its tensors lie in memory and the CPU's kernels compute on them. Like a GPU's they may not meet the CPU's
tensors, and whoever reads them makes the host wait. `python -m tests.mtl.other_device FILE` runs the commands
in a JSON file there (with `cpu` behind it on the CPU), and writes their exit codes, and where training steps
waited, to standard output's last line. `--counts FOLDER` counts operations and waits of measures on sentences
of a corpus instead. Not covered: kernels of CUDA, autocast to bfloat16, and inference
mode, which such tensors do not know (no_grad takes its place).
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "other"
MAY_MOVE = {"_to_copy", "copy_"}
"""Operations that take tensors from one device to the other."""
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Operations of this device that take indices on the CPU; the host waits for these, and for conditions."""
WAIT = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "bincount"}
"""Operations whose result, or the shape of it, the host has to read."""


class _Backend(_DummyBackendModule):
    """What torch asks of a device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def get_rng_state(self, device=None) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.uint8)

    def set_rng_state(self, state, device=None) -> None:
        pass

    class Event:
        """A mark in the queue of the device, which computes at once."""

        def record(self) -> None:
            pass

        def synchronize(self) -> None:
            pass


_setup_privateuseone_for_python_backend(NAME, _Backend())
DEVICE = torch.device(NAME, 0)


class OtherTensor(torch.Tensor):
    """A tensor on the other device; `memory` is the CPU's tensor with its values."""

    memory: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, memory: torch.Tensor) -> OtherTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, memory.size(), strides=memory.stride(), storage_offset=memory.storage_offset(),
            dtype=memory.dtype, device=DEVICE,
        )  # fmt: skip
        made.memory = memory
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, arguments=(), options=None):
        return perform(operation, arguments, options or {})

    def tolist(self):
        WAITS.note()
        return self.memory.tolist()

    def numpy(self, **options):
        raise TypeError(f"can't convert a tensor of device {NAME} to numpy")

    __array__ = numpy

    # Models are copied and saved by what their tensors store.
    def __deepcopy__(self, known):
        if id(self) not in known:
            copied = OtherTensor(self.memory.clone())
            is_parameter = getattr(self, "_is_param", False)
            known[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if is_parameter else copied
        return known[id(self)]

    def storage(self):
        return self.memory.storage()

    def untyped_storage(self):
        return self.memory.untyped_storage()

    def data_ptr(self) -> int:
        return self.memory.data_ptr()


class Waits:
    """Where the host waited for the device, by job: in training steps, and in jobs on batches."""

    def __init__(self) -> None:
        self.job: str | None = None
        self.places: dict[str, list[list[str]]] = {"step": []}
        self.times: Counter[str] = Counter()

    def within(self, job: str, function: Callable) -> Callable:
        """The function, with waits in it noted as those of a job."""
        self.places.setdefault(job, [])

        def noted(*arguments, **options):
            before, self.job = self.job, job
            self.times[job] += 1
            try:
                return function(*arguments, **options)
            finally:
                self.job = before

        return noted

    def note(self) -> None:
        if self.job is not None:
            frames = [frame for frame in traceback.extract_stack() if frame.filename != __file__]
            self.places[self.job].append([f"{frame.filename}:{frame.lineno}" for frame in frames[-12:]])


WAITS = Waits()


def memory_of(value):
    """The CPU's tensor behind one of the other device; everything else as it is."""
    return value.memory if isinstance(value, OtherTensor) else value


def perform(operation, arguments, options):
    """Compute on the CPU; raises `RuntimeError` where a GPU would refuse tensors of two devices."""
    name = operation._schema.name.partition("::")[2]
    tensors = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, torch.Tensor)]
    others = [tensor for tensor in tensors if isinstance(tensor, OtherTensor)]
    indexing = name in INDEXING and isinstance(arguments[0], OtherTensor)
    indices = [id(index) for index in arguments[1]] if indexing else []
    ours = [
        tensor
        for tensor in tensors
        if not isinstance(tensor, OtherTensor) and tensor.dim() > 0 and id(tensor) not in indices
    ]
    if others and ours and name not in MAY_MOVE:
        raise RuntimeError(f"{operation}: tensors on {DEVICE} and on the CPU")
    result_there = bool(others)
    if options.get("device") is not None:
        result_there = torch.device(options["device"]).type == NAME
        options = {**options, "device": torch.device("cpu")}
    if name == "copy_":
        result_there = isinstance(arguments[0], OtherTensor)
    read = indexing and any(
        index is not None and (index.dtype == torch.bool or not isinstance(index, OtherTensor))
        for index in arguments[1]
    )
    crosses = (name in MAY_MOVE and bool(others) != result_there) or (others and not result_there)
    if (crosses and not options.get("non_blocking")) or (others and (name in WAIT or read)):
        WAITS.note()
    result = operation(*tree_map(memory_of, arguments), **tree_map(memory_of, options))
    if not result_there:
        return result
    known = {id(tensor.memory): tensor for tensor in others}  # what works in place returns its argument

    def there(value):
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else OtherTensor(value)

    return tree_map(there, result)


class OnBothDevices(TorchDispatchMode):
    """Handles what makes tensors anew, too."""

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        return perform(operation, arguments, options or {})


def _empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return OtherTensor(torch.empty(size, dtype=dtype, device="cpu"))


def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return OtherTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source, target, non_blocking=False):
    if not (non_blocking or isinstance(source, OtherTensor)):
        WAITS.note()
    memory_of(target).copy_(memory_of(source))
    return target


LIBRARY = torch.library.Library("aten", "IMPL")  # for torch.tensor(..., device=...), which modes do not see
LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")


class _Generator(torch.Generator):
    """Random numbers come from the CPU."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, device="cpu")


class _Accelerator(pl.accelerators.CPUAccelerator):
    """The device as Lightning's accelerator."""

    def setup_device(self, device: torch.device) -> None:
        pass

    @staticmethod
    def get_parallel_devices(devices) -> list[torch.device]:
        return [DEVICE]


class _Trainer(pl.Trainer):
    def __init__(self, **options) -> None:
        del options["accelerator"], options["strategy"]
        strategy = pl.strategies.SingleDeviceStrategy(device=DEVICE, accelerator=_Accelerator())
        super().__init__(strategy=strategy, **options)


def _step(self, epoch, batch, optimizer, closure) -> None:
    """Lightning's `optimizer_step`: forward, backward and update, in which waits are noted."""
    WAITS.within("step", optimizer.step)(closure=closure)


def main(file: str, where: str = NAME) -> None:
    """Run commands; the last line of the output is JSON: codes, and by job waits (their frames) and times."""
    device = install() if where == NAME else as_elsewhere()
    from mtl.commands.main import main as command

    with device:
        codes = [command(words) for words in json.loads(Path(file).read_text())]
    print()
    print(json.dumps({"codes": codes, "waits": WAITS.places, "times": WAITS.times}))


def counts(folder: str, bias: str = "-10") -> None:
    """Print, as JSON, operations, waits and copies of measures on a batch in five tasks, with 72 heads.

    The bias of predicates decides whether the model finds none (-10) or some of them (0).
    """
    device = install()
    from mtl.analysis.ablation import Ablator, ablations
    from mtl.analysis.importance import task_importance
    from mtl.analysis.probe import index_corpus, probe_heads
    from mtl.corpora.formats.jsonl import read_jsonl
    from mtl.heads.gates import Mask
    from mtl.models.batches import collate, examples
    from mtl.models.joint import JointModel
    from mtl.tasks.catalogue import STRUCTURED
    from tests.launches import Launches
    from tests.mtl import tiny

    sentences = read_jsonl(Path(folder) / "train.jsonl")[:6]
    large = {"num_hidden_layers": 6, "num_attention_heads": 12, "hidden_size": 48}
    torch.manual_seed(0)  # what is decoded follows from the weights, and with it the number of operations
    config = tiny.config("bert", max_position_embeddings=200, **large)
    encoder = tiny.encoder_of(config, tiny.tokenizer("bert"))
    tasks = {task.name: task() for task in STRUCTURED}
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(encoder, tasks, labels).eval()
    torch.nn.init.constant_(model.decoders["srl"].predicate.bias, float(bias))
    prepared = examples(sentences, encoder.tokenizer, tasks, labels)
    corpus, every = index_corpus(sentences), ablations("head", encoder.tap.remaining)
    with device:
        model.to(DEVICE)
        on_cpu = collate(prepared, encoder.tokenizer, tasks)
        batch = on_cpu.to(DEVICE)
        ablate = Ablator(model, every)
        jobs = {
            "forward": lambda: encoder(batch.subwords),
            "evaluation": lambda: model.decoded(batch, given=True),
            "ablation": lambda: ablate(batch),
            "importance": lambda: task_importance(model, [on_cpu]),
            "probes": lambda: probe_heads(encoder, corpus, Mask("", (), None)),
        }
        found = {}
        for name, job in jobs.items():
            WAITS.places.clear()
            for inner in ("step", "decoding", "importance", "ablation"):
                WAITS.places[inner] = []
            with Launches() as counted, torch.set_grad_enabled(name == "importance"):
                WAITS.within("all", job)()
            waits = sum(map(len, WAITS.places.values()))
            copies = sum(counted.by_name[name] for name in ("copy_", "clone", "_to_copy"))
            found[name] = {"operations": counted.total(), "waits": waits, "copies": copies}
    print(json.dumps(found))


def install() -> OnBothDevices:
    """Make the program use the other device as its accelerator."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.inference_mode = lambda on=True: torch.no_grad() if on else contextlib.nullcontext()
    torch.Generator = _Generator
    from safetensors.torch import save_file
    from transformers import modeling_utils

    modeling_utils.safe_save_file = lambda tensors, *more, **options: save_file(
        {name: memory_of(tensor.detach()).contiguous() for name, tensor in tensors.items()}, *more, **options
    )
    import mtl.models.opened

    mtl.models.opened.device_of = lambda accelerator, key="": DEVICE
    from mtl.analysis import ablation as ablation_run
    from mtl.training import assembly, step

    ablation_run.BATCH_TOKENS[NAME] = ablation_run.BATCH_TOKENS["cuda"]
    assembly.pl.Trainer = _Trainer
    step.JointTraining.optimizer_step = _step
    from mtl.analysis.ablation import Ablator
    from mtl.analysis.importance import GateGradients
    from mtl.models.joint import JointModel

    JointModel.decoded = WAITS.within("decoding", JointModel.decoded)
    GateGradients.add = WAITS.within("importance", GateGradients.add)
    Ablator.__call__ = WAITS.within("ablation", Ablator.__call__)
    return OnBothDevices()


def as_elsewhere() -> contextlib.AbstractContextManager[None]:
    """Draw dropout on the CPU as on other devices: only the CPU has masks by counter."""
    from mtl.training import step

    step.draw_by_counter = lambda model: None
    return contextlib.nullcontext()


if __name__ == "__main__":
    counts(*sys.argv[2:]) if sys.argv[1] == "--counts" else main(*sys.argv[1:])
