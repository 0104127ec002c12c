from pathlib import Path

from shoal.strategies.servers import Sync

Path(__file__).with_name("imported").touch()


class Mine(Sync):
    name = "mine"
