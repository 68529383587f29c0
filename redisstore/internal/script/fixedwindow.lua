-- The fixed window that begins with a key's first request; see fixedwindow.go.
-- The value is the units used, and the window ends when the key expires.
--
-- ARGV: cost, count, period; and where needed 1 for AtMost or o for Overdraw or 0 for
--       neither, with a colon and the units that a take keeps free; and the overdraft if
--       it is not the count
-- Returns the units used and the time left, before the step, as one number if it can
-- hold both, because two cost a fifth more; and the units granted.
local asked, count, period = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local how, keep = ARGV[4], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
---------------------------------------- each
local rest = redis.call('PTTL', KEYS[1])
local used, stale = 0, false
if rest > 0 then
  local text = redis.call('GET', KEYS[1])
  used = tonumber(text)
  if not used or used < 1 or used % 1 ~= 0 then return redis.error_reply('FOREIGN value') end
  if not string.find(text, '^[1-9]%d*$') then return redis.error_reply('FOREIGN value') end -- together
elseif rest == -1 then
  return redis.error_reply('FOREIGN key without expiry')
end
local found, left = used, rest
if rest > period then rest, stale = period, true end
local free, cost = count - used - keep, asked
if ARGV.due and ARGV.due ~= rest then cost = 0 end -- under an ID
if cost > free and cost > 0 then
  if how == 'o' then
    cost = math.min(cost, math.max(free + (ARGV[5] or count), 0))
  elseif how == '1' then
    cost = math.max(free, 0)
  else
    cost = 0
  end
elseif cost < -used then
  cost = -used
end
if ARGV.dry then return {found, left}, cost end
---------------------------------------- write
ARGV.due = used == 0 and period or rest -- under an ID
local after = used + cost
if after == 0 then
  if rest >= 0 then redis.call('DEL', KEYS[1]) end
elseif used == 0 then
  redis.call('SET', KEYS[1], cost, 'PX', ARGV[3])
elseif stale then
  redis.call('SET', KEYS[1], after, 'PX', rest)
elseif cost == asked and cost ~= 0 then
  redis.call('INCRBY', KEYS[1], ARGV[1])
elseif cost ~= 0 then
  redis.call('INCRBY', KEYS[1], cost)
end
---------------------------------------- reply
if found == 0 then return 0 end -- alone
local both = found * (period + 1) + left -- alone
if left <= period and both < 9007199254740992 then return both end -- alone
return {found, left}, cost, 0
