import shoal


class Counter:  # neither saves nor loads
    def __init__(self):
        self.rows = {}

    def push(self, pairs, cmd):
        for key, values in pairs:
            self.rows[key] = values

    def pull(self, keys, cmd):
        return [self.rows[key] for key in keys.tolist()]


shoal.handler("unmovable", Counter)
