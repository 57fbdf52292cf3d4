import unittest

from ledger import Ledger, Refused


class Accounts(unittest.TestCase):
    def setUp(self):
        self.ledger = Ledger()
        self.ledger.open("ann", 100)
        self.ledger.open("bob", 0, overdraft=50)

    def test_a_transfer_moves_money(self):
        self.ledger.transfer("ann", "bob", 30)
        self.assertEqual((self.ledger.balance("ann"), self.ledger.balance("bob")), (70, 30))
        self.assertEqual(self.ledger.total(), 100)

    def test_everything_may_be_moved(self):
        self.ledger.transfer("ann", "bob", 100)
        self.assertEqual(self.ledger.balance("ann"), 0)

    def test_no_more_than_there_is(self):
        with self.assertRaises(Refused):
            self.ledger.transfer("ann", "bob", 101)
        self.assertEqual((self.ledger.balance("ann"), self.ledger.balance("bob")), (100, 0))

    def test_an_overdraft_ends_at_its_limit(self):
        self.ledger.transfer("bob", "ann", 50)
        self.assertEqual(self.ledger.balance("bob"), -50)
        with self.assertRaises(Refused):
            self.ledger.transfer("bob", "ann", 1)

    def test_amounts_are_positive(self):
        for amount in (0, -5):
            with self.assertRaises(Refused):
                self.ledger.transfer("ann", "bob", amount)

    def test_not_to_oneself_and_not_to_nobody(self):
        with self.assertRaises(Refused):
            self.ledger.transfer("ann", "ann", 1)
        with self.assertRaises(Refused):
            self.ledger.transfer("ann", "eve", 1)
        with self.assertRaises(Refused):
            self.ledger.transfer("eve", "ann", 1)
        self.assertEqual(self.ledger.total(), 100)

    def test_names_are_taken_once(self):
        with self.assertRaises(Refused):
            self.ledger.open("ann")

    def test_no_debt_at_the_start(self):
        for balance, overdraft in ((-1, 0), (0, -1)):
            with self.assertRaises(Refused):
                self.ledger.open("eve", balance, overdraft)

    def test_history_is_newest_first_with_signs(self):
        self.ledger.transfer("ann", "bob", 30, "rent")
        self.ledger.transfer("bob", "ann", 5, "change")
        self.assertEqual(self.ledger.history("ann"), [("bob", 5, "change"), ("bob", -30, "rent")])
        self.assertEqual(self.ledger.history("bob"), [("ann", -5, "change"), ("ann", 30, "rent")])
        self.assertEqual(self.ledger.history("eve"), [])

    def test_interest_is_rounded_half_up(self):
        self.ledger.open("eve", 150)
        self.ledger.open("zed", 149)
        self.assertEqual(self.ledger.interest(1), {"ann": 1, "eve": 2, "zed": 1})
        self.assertEqual(self.ledger.total(), 399)

    def test_undo_takes_the_last_one_back(self):
        self.ledger.transfer("ann", "bob", 30)
        self.ledger.transfer("ann", "bob", 20)
        self.assertTrue(self.ledger.undo())
        self.assertEqual(self.ledger.balance("ann"), 70)
        self.assertEqual(len(self.ledger.history("bob")), 1)
        self.assertTrue(self.ledger.undo())
        self.assertFalse(self.ledger.undo())
        self.assertEqual(self.ledger.balance("bob"), 0)
