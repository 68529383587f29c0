-- arguments returns the arguments of a step, which follow their number in ARGV, and the place behind
-- them; or nil if there are none. A table that has room for them at once costs less than one that grows.
local function arguments(at)
  local n = math.abs(ARGV[at])
  if n == 0 then return nil, at + 1 end
  if n < 4 then return {ARGV[at + 1], ARGV[at + 2], n == 3 and ARGV[at + 3] or nil, dry = false, due = false}, at + 1 + n end
  local list = {ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], n > 4 and ARGV[at + 5] or nil,
    n > 5 and ARGV[at + 6] or nil, n > 6 and ARGV[at + 7] or nil, dry = false, due = false}
  for i = 8, n do list[i] = ARGV[at + i] end
  return list, at + 1 + n
end
