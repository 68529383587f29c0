-- The leaky bucket; see leakybucket.go. The bound applies to the debt before the
-- charge, because that is the delay.
if bound then late = debt > bound end
----------------------------------------
return debt, charge, how == 'o' and 0 or math.ceil(debt / unit)
