"""The contract for any attention, the audit that applies it, and adapters to other libraries."""

from linnet.testing.contract import LENGTHS, Check, Report, check_attention
from linnet.testing.contract_trial import contract_difference

__all__ = ["LENGTHS", "Check", "Report", "check_attention", "contract_difference"]
