"""How large an effect is and how sure that is: statistics, comparisons, contrasts, when to stop."""
