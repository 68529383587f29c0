-- The fixed window aligned to the clock or the calendar; see fixedwindow.go. The value
-- is the end of the window in seconds, followed by the units used in nine digits: one
-- number, which INCRBY can add to. If the window ends between two seconds, because a
-- clock was set back, or if nine digits are too few, the value is the units used, a
-- space, and the end in milliseconds. The key lives a little longer than the window, so
-- that not all keys expire at once. Only a charge replaces an expired window, and only a
-- reset deletes it.
--
-- Windows on the clock are given by their length and offset. Windows of a calendar are
-- given by the instants at which they begin, some before and some after the caller's
-- estimate of the time. If none of them contains the server's time, nothing is decided:
-- the script returns that time, and the caller sends the request again.
--
-- ARGV: cost or "all", count, 1 for AtMost or o for Overdraw or 0 or empty for neither,
--       with a colon and the units that a take keeps free, the overdraft, thousandths of the
--       window to live longer, length, offset; or an empty length, and instants
-- Returns the units used, the window's end and the time, before the step; for windows
-- on the clock the units used and the time left, as one number if it can hold both;
-- and the units granted.
local sub, asked, count = string.sub, tonumber(ARGV[1]) or -math.huge, ARGV[2] + 0
local how, keep = ARGV[3], 0
if #how > 1 and asked > 0 then how, keep = sub(how, 1, 1), sub(how, 3) + 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local length, close = tonumber(ARGV[6]), false
local clocked = length
if clocked then
  close = now - (now - ARGV[7]) % length + length
else
  for i = 7, #ARGV - 1 do
    if ARGV[i] + 0 <= now and now < ARGV[i + 1] + 0 then
      close = tonumber(ARGV[i + 1])
      length = close - ARGV[i]
    end
  end
  if not close then return {-1, 0, now} end
end
-- A value of this window. One match costs less than taking it apart.
local match = string.match
local current = close % 1000 == 0 and '^' .. string.format('%.0f', close / 1000) .. '(%d%d%d%d%d%d%d%d%d)$'
---------------------------------------- each
local value = redis.call('GET', KEYS[1])
local used, finish, over, stale, whole = 0, close, true, false, false
local units = value and current and match(value, current)
if units then
  used, over, whole = units + 0, false, true
elseif value then
  local ending, counted = match(value, '^(%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d)$')
  if ending then
    ending = ending * 1000
  else
    counted, ending = match(value, '^(%d+) (%d+)$')
  end
  if not ending then return redis.error_reply('FOREIGN value') end
  if ending + 0 > now then used, finish, over = counted + 0, ending + 0, false end
end
local found, ending = used, finish
if finish > now + length then finish, stale = now + length, true end
local free, cost = count - used - keep, asked
if ARGV.due and ARGV.due ~= finish - now then cost = 0 end -- under an ID
if cost > free and cost > 0 then
  if how == 'o' then
    cost = math.min(cost, math.max(free + ARGV[4], 0))
  elseif how == '1' then
    cost = math.max(free, 0)
  else
    cost = 0
  end
elseif cost < -used then
  cost = -used
end
if ARGV.dry then return {found, ending, now}, cost end
---------------------------------------- write
ARGV.due = finish - now -- under an ID
local after = used + cost
if after == 0 then
  if value and (not over or ARGV[1] == 'all') then redis.call('DEL', KEYS[1]) end
elseif whole and not stale and after < 1000000000 then
  if cost == asked and cost ~= 0 then
    redis.call('INCRBY', KEYS[1], ARGV[1]) -- it is text already
  elseif cost ~= 0 then
    redis.call('INCRBY', KEYS[1], cost)
  end
elseif cost ~= 0 or stale then
  local text, left = string.format('%.0f %.0f', after, finish), finish - now
  if finish % 1000 == 0 and finish >= 1000000000000 and finish < 9223372036000 and after < 1000000000 then
    text = string.format('%.0f%09.0f', finish / 1000, after)
  end
  left = left + math.floor(length * ARGV[5] / 1000)
  redis.call('SET', KEYS[1], text, 'PX', left)
end
---------------------------------------- reply
local both = found * (length + 1) + (ending - now) -- alone
if clocked and ending - now <= length and both < 9007199254740992 then return both end -- alone
return {found, ending, now}, cost, 0
