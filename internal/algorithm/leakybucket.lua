-- The leaky bucket; see leakybucket.go. The bound is on the debt that is found,
-- for that is the delay.
if bound then late = debt > bound end
----------------------------------------
return debt, charge, math.ceil(debt / unit)
