"""The contract of an attention, for anybody's attention; beside it the audit, and adapters to other libraries."""

from linnet.testing.contract import LENGTHS, Check, Report, check_attention, difference

__all__ = ["LENGTHS", "Check", "Report", "check_attention", "difference"]
