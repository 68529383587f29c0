-- The token bucket; see tokenbucket.go. ARGV[4] is how far the debt may grow.
if ARGV[4] and ARGV[4] ~= '' then most = tonumber(ARGV[4]) end
----------------------------------------
local delay = 0
if after > capacity then delay = math.ceil((after - capacity) / unit) end
return debt, charge, delay
