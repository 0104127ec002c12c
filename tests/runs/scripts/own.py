from shoal.strategies.servers import Sync
from shoal.strategies.settings import StrategySettings


class Settings(StrategySettings, frozen=True, kw_only=True):
    optimizer = "adagrad"


class Mine(Sync):
    name = "mine"
    Settings = Settings
