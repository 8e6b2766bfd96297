"""Small statistics of text."""

import re
from collections import Counter


def words(text):
    """The words of a text in lower case. An apostrophe inside a word belongs to it: "don't" is one word."""
    return re.findall(r"\w+(?:'\w+)*", text.lower())


def most_common(text, count):
    """The `count` most frequent words with their numbers; equally frequent ones in alphabetical order."""
    return sorted(Counter(words(text)).items(), key=lambda item: -item[1])[:count]


def average_length(text):
    """The mean length of the words, 0.0 for a text without words."""
    found = words(text)
    return sum(len(word) for word in found) / len(found) if found else 0.0
