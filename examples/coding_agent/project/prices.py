"""What it costs, in cents."""


def reduced(price, percent):
    if percent <= 0:
        return price
    return price * (100 - percent) // 100


def cheapest(prices):
    return min(prices) if prices else None


def shipping(weight):
    if weight > 20:
        return 990
    return 490 if weight > 2 else 190
