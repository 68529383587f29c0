-- The leaky bucket; see leakybucket.go. ARGV[4] is the debt above which the
-- delay would be too long.
if ARGV[4] and ARGV[4] ~= '' then late = debt > tonumber(ARGV[4]) end
----------------------------------------
return debt, charge, math.ceil(debt / unit)
