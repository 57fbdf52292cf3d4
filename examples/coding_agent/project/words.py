"""What is written on the label."""


def short(text, width):
    if len(text) <= width:
        return text
    return text[: width - 1] + "."


def plural(count, word):
    return word if count == 1 else word + "s"
