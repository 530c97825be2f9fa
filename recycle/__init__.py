"""ReCycle: fault-tolerant pipeline-parallel training that re-routes work around failed servers."""

__version__ = "0.1.0"
