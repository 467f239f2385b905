"""The laboratory of the Stem Cell Hypothesis, on the heads that tasks claim (`Masks.claimed`).

`contest` has the test of claims: is a head worth less beside a partner that claims it, too? `sharing` says
whether tasks want the same heads and what they lose by few, `competition` describes whether claims and losses
go together and whether tasks pull contested heads apart. `answers` and `claims_and_losses` are parts of the
report's page.
"""
