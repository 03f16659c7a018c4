"""Numbers in sentences: "1 replica", "2 replicas". Pure."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """The number with its noun; `plural` is the noun's own where it takes more than an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def are(number: int) -> str:
    """The verb that goes with a number of things."""
    return "is" if number == 1 else "are"
