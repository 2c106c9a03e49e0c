"""Code written for the oracle finds every name, with the parameters that it passes."""

import inspect


def parameters(function):
    return [
        (p.name, p.kind)
        for p in inspect.signature(function).parameters.values()
        if p.name != "self" and p.kind is not inspect.Parameter.VAR_KEYWORD
    ]


def test_every_public_name_is_there(oracle, ours):
    assert set(oracle.__all__) <= set(ours.__all__)


def test_members_take_the_same_parameters(oracle, ours):
    different = []
    bases = {"ImageSource", "Message"}  # never instances; what they declare, subclasses have
    for name in sorted(set(oracle.__all__) - {"__version__", "SpecialTokens"} - bases):
        theirs, mine = getattr(oracle, name), getattr(ours, name)
        if not inspect.isclass(theirs) or issubclass(theirs, Exception):
            continue
        for member in (m for m in dir(theirs) if not m.startswith("_")):
            if not hasattr(mine, member):
                different.append(f"{name}.{member} is missing")
                continue
            function = getattr(theirs, member)
            if callable(function) and not isinstance(function, theirs):
                try:
                    expected = parameters(function)
                except ValueError:  # no signature in the compiled package
                    continue
                if parameters(getattr(mine, member)) != expected:
                    different.append(f"{name}.{member}")
    assert different == []


def test_constructors_take_the_same_parameters(oracle, ours):
    different = []
    for name in sorted(set(oracle.__all__) - {"__version__", "SpecialTokens"}):
        theirs = getattr(oracle, name)
        if not inspect.isclass(theirs) or issubclass(theirs, Exception):
            continue
        try:
            expected = parameters(theirs)
        except ValueError:  # not to be constructed
            continue
        actual = parameters(getattr(ours, name))[: len(expected)]
        if expected != actual:
            different.append((name, expected, actual))
    assert different == []
