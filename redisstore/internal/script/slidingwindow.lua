-- The sliding window of two counters; see slidingwindow.go. The value is
-- previous * 2^26 + current, plus 2^52 if a charge overdrew the window, and the key
-- expires when the window after the current one ends.
--
-- A count times a time may need more bits than a double has; then it is divided in
-- two digits, as in long division.
--
-- ARGV: cost, count, period; and where needed 1 for AtMost or o for Overdraw or 0 for
--       neither, with a colon and the units that a take keeps free; and the overdraft if
--       it is not the count
-- Returns the value and the time left, before the step, as one number if it can hold
-- both; and the units granted.
local asked, count, period = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
---------------------------------------- each
local rest = redis.call('PTTL', KEYS[1])
local value, stale = 0, false
if rest > 0 then
  local text = redis.call('GET', KEYS[1])
  value = tonumber(text)
  if not value or value < 1 or value % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
  if not string.find(text, '^[1-9]%d*$') then return redis.error_reply('FOREIGN value') end -- together
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local current = value % 67108864
local previous = (value - current) / 67108864
local left, kept, overdrawn = rest - period, true, false
if previous >= 67108864 then
  previous, overdrawn = previous - 67108864, left > 0
  if not overdrawn then current = math.min(current, count) end
end
if left <= 0 then previous, current, left, kept = current, 0, rest, false end
if previous == 0 and current == 0 then left, kept = period, false end
if left > period then left, stale = period, true end
local share = 0
if previous > 0 then
  share = math.ceil(previous * left / period)
  if previous * left >= 9007199254740992 then
    local high, low = math.floor(previous / 8192), previous % 8192
    local whole = math.floor(high * left / period)
    share = whole * 8192 + math.ceil(((high * left - whole * period) * 8192 + low * left) / period)
  end
end
local free, cost = count - current - share - keep, asked
if cost > free and cost > 0 then
  if how == 'o' then
    cost = math.min(cost, math.max(free + (ARGV[5] or count), 0))
  elseif how == '1' then
    cost = math.max(free, 0)
  else
    cost = 0
  end
elseif cost < -current - previous then
  cost = -current - previous
end
if ARGV.dry then return {value, rest}, cost end
---------------------------------------- write
if ARGV.due then -- under an ID
  if ARGV.due == left and previous > 0 and cost < 0 then -- under an ID
    previous, stale = previous - math.min(-asked, previous), true -- under an ID
  end -- under an ID
  cost = ARGV.due == left + period and math.max(cost, -current) or 0 -- under an ID
end -- under an ID
ARGV.due = left + period -- under an ID
current = current + cost
if current < 0 then previous, current = previous + current, 0 end
if previous == 0 and current == 0 then
  if rest >= 0 then redis.call('DEL', KEYS[1]) end
elseif cost ~= 0 or stale then
  local after = previous * 67108864 + current
  if cost ~= 0 then overdrawn = (overdrawn or cost > 0) and cost > free and current > 0 end
  if overdrawn then after = after + 4503599627370496 end
  if kept and not stale and cost > 0 and after - value == asked then
    redis.call('INCRBY', KEYS[1], ARGV[1])
  elseif kept and not stale then
    redis.call('INCRBY', KEYS[1], after - value)
  else
    redis.call('SET', KEYS[1], after, 'PX', left + period)
  end
end
---------------------------------------- reply
if value == 0 then return 0 end -- alone
local both = value * (2 * period + 1) + rest -- alone
if rest <= 2 * period and both < 9007199254740992 then return both end -- alone
return {value, rest}, cost, 0
