import unittest

from textstats import average_length, most_common, words


class TextStats(unittest.TestCase):
    def test_words_keep_their_apostrophes(self):
        self.assertEqual(words("Don't panic, DON'T."), ["don't", "panic", "don't"])

    def test_the_most_common_words_come_first(self):
        self.assertEqual(most_common("b a b c b a", 2), [("b", 3), ("a", 2)])

    def test_ties_are_in_alphabetical_order(self):
        self.assertEqual(most_common("pear fig apple fig pear", 3), [("fig", 2), ("pear", 2), ("apple", 1)])

    def test_a_text_without_words_has_length_zero(self):
        self.assertEqual(average_length("..."), 0.0)


if __name__ == "__main__":
    unittest.main()
