import unittest

from grids import find, live, neighbours, regions, rotate, steps

MAZE = ["S.#.", "..#G", "#...", "...."]


class Ways(unittest.TestCase):
    def test_the_first_place_is_found(self):
        self.assertEqual(find(MAZE, "#"), (0, 2))
        self.assertIsNone(find(MAZE, "x"))

    def test_corners_have_two_neighbours(self):
        self.assertEqual(sorted(neighbours(MAZE, (0, 0))), [(0, 1), (1, 0)])
        self.assertEqual(sorted(neighbours(MAZE, (3, 3))), [(2, 3), (3, 2)])

    def test_the_middle_has_four(self):
        self.assertEqual(sorted(neighbours(MAZE, (1, 1))), [(0, 1), (1, 0), (1, 2), (2, 1)])

    def test_the_shortest_way(self):
        self.assertEqual(steps(MAZE), 6)
        self.assertEqual(steps(["SG"]), 1)

    def test_no_way(self):
        self.assertEqual(steps(["S#G"]), -1)

    def test_a_start_and_a_goal_are_needed(self):
        for grid in (["S."], [".G"], []):
            with self.assertRaises(ValueError):
                steps(grid)

    def test_other_signs(self):
        self.assertEqual(steps(["a.b", "###"], "a", "b"), 2)
        self.assertEqual(steps(["axb", "..."], "a", "b", wall="x"), 4)


class Areas(unittest.TestCase):
    def test_sizes_by_sign(self):
        self.assertEqual(regions(["aab", "abb", "baa"]), {"a": [3, 2], "b": [3, 1]})

    def test_diagonals_do_not_connect(self):
        self.assertEqual(regions(["ab", "ba"]), {"a": [1, 1], "b": [1, 1]})

    def test_nothing(self):
        self.assertEqual(regions([]), {})


class Life(unittest.TestCase):
    def test_a_blinker_turns(self):
        self.assertEqual(live(["...", "###", "..."]), [".#.", ".#.", ".#."])

    def test_a_block_stays(self):
        self.assertEqual(live(["....", ".##.", ".##.", "...."]), ["....", ".##.", ".##.", "...."])

    def test_alone_and_crowded_ones_die(self):
        self.assertEqual(live(["#.", ".."]), ["..", ".."])
        self.assertEqual(live(["###", "###", "###"]), ["#.#", "...", "#.#"])

    def test_turning(self):
        self.assertEqual(rotate(["ab", "cd", "ef"]), ["eca", "fdb"])
        self.assertEqual(rotate([]), [])
