"""Files that appear whole or not at all, and their hashes."""

from __future__ import annotations

import hashlib

from mtl.files import fingerprint, sha256


def test_the_fingerprint_sees_content_and_its_division_but_no_names(tmp_path):
    a, b, c = (tmp_path / name for name in "abc")
    a.write_bytes(b"xy")
    b.write_bytes(b"z")
    c.write_bytes(b"xy")
    assert sha256(a) == hashlib.sha256(b"xy").hexdigest()
    assert fingerprint([a, b]) == fingerprint([c, b])
    assert fingerprint([a, b]) != fingerprint([b, a])
    before = fingerprint([a, b])
    a.write_bytes(b"x")
    b.write_bytes(b"yz")
    assert fingerprint([a, b]) != before
