import unittest

from expressions import Wrong, evaluate, postfix, tokens


class Reading(unittest.TestCase):
    def test_tokens(self):
        self.assertEqual(tokens("a1+ 2.5*(b)"), ["a1", "+", "2.5", "*", "(", "b", ")"])

    def test_other_signs_are_refused(self):
        with self.assertRaisesRegex(Wrong, "'%' at 2"):
            tokens("1 % 2")

    def test_the_order_of_evaluation(self):
        self.assertEqual(postfix("1+2*3"), ["1", "2", "3", "*", "+"])
        self.assertEqual(postfix("(1+2)*3"), ["1", "2", "+", "3", "*"])
        self.assertEqual(postfix("a-b-c"), ["a", "b", "-", "c", "-"])
        self.assertEqual(postfix("a^b^c"), ["a", "b", "c", "^", "^"])

    def test_what_is_missing_is_said(self):
        for text, says in (
            ("1+", "at the end"),
            ("", "at the end"),
            ("1 2", "operator is missing before 2"),
            ("2(3)", "operator is missing before \\("),
            ("()", "value is missing before \\)"),
            ("*2", "value is missing before \\*"),
            ("(1", "\\( too many"),
            ("1)", "\\) too many"),
        ):
            with self.assertRaisesRegex(Wrong, says, msg=text):
                postfix(text)


class Evaluating(unittest.TestCase):
    def test_levels(self):
        self.assertEqual(evaluate("2+3*4"), 14)
        self.assertEqual(evaluate("2*3+4"), 10)
        self.assertEqual(evaluate("2*3^2"), 18)
        self.assertEqual(evaluate("(2+3)*4"), 20)

    def test_from_the_left_and_from_the_right(self):
        self.assertEqual(evaluate("10-4-3"), 3)
        self.assertEqual(evaluate("16/4/2"), 2)
        self.assertEqual(evaluate("2^3^2"), 512)

    def test_signs(self):
        self.assertEqual(evaluate("-3+5"), 2)
        self.assertEqual(evaluate("2*-3"), -6)
        self.assertEqual(evaluate("-2^2"), -4)
        self.assertEqual(evaluate("--2"), 2)
        self.assertEqual(evaluate("-2*3"), -6)

    def test_names(self):
        self.assertEqual(evaluate("(a-b)/c", a=9, b=3, c=2), 3)
        with self.assertRaisesRegex(Wrong, "d has no value"):
            evaluate("d+1", a=1)
