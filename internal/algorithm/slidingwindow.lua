-- The sliding window of two counters; see slidingwindow.go. The value is
-- previous * 2^26 + current, and the key expires when the window after the
-- current one ends.
--
-- A count times a time may need more bits than a double has; then it is divided in
-- two digits, as in long division.
--
-- ARGV: cost, count, period, and 1 for AtMost
-- Returns the value and the time left, before the step, as one number if it can hold
-- both; and the units granted.
local call, asked, count, period = redis.call, ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
---------------------------------------- each
local rest = call('PTTL', key)
local value, stale = 0, false
if rest > 0 then
  value = tonumber(call('GET', key))
  if not value or value < 1 or value % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local current = value % 67108864
local previous = (value - current) / 67108864
local left, kept = rest - period, true
if left <= 0 then previous, current, left, kept = current, 0, rest, false end
if previous == 0 and current == 0 then left, kept = period, false end
if left > period then left, stale = period, true end
if current > count then current, stale = count, true end
local share = 0
if previous > 0 then
  share = math.ceil(previous * left / period)
  if share > count - current or previous * left >= 9007199254740992 then
    local function divide(a, b, c, round)
      local high, low = math.floor(a / 8192), a % 8192
      local whole = math.floor(high * b / c)
      return whole * 8192 + round(((high * b - whole * c) * 8192 + low * b) / c)
    end
    share = divide(previous, left, period, math.ceil)
    if share > count - current then
      previous, stale = divide(count - current, period, left, math.floor), true
      share = divide(previous, left, period, math.ceil)
    end
  end
end
local free, cost = count - current - share, asked
if ARGV[4] and cost > free then cost = math.max(free, 1) end
if cost > free then cost = 0 elseif cost < -current - previous then cost = -current - previous end
if ARGV.dry then return {value, rest}, cost end
current = current + cost
if current < 0 then previous, current = previous + current, 0 end
if previous == 0 and current == 0 then
  if rest >= 0 then call('DEL', key) end
elseif cost ~= 0 or stale then
  local after = previous * 67108864 + current
  if kept and not stale and cost == asked and cost > 0 then
    call('INCRBY', key, ARGV[1])
  elseif kept and not stale then
    call('INCRBY', key, after - value)
  else
    call('SET', key, after, 'PX', left + period)
  end
end
if value == 0 then return 0 end -- alone
local both = value * (2 * period + 1) + rest -- alone
if rest <= 2 * period and both < 9007199254740992 then return both end -- alone
return {value, rest}, cost, 0
