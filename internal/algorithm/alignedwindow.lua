-- The fixed window on the clock or by the calendar; see fixedwindow.go. The
-- value is what has been used and when the window ends, in milliseconds; the key
-- lives a little longer, so that not all of them expire at once. A window that is
-- over is only replaced when something is charged, or forgotten when all is.
--
-- Windows on the clock are given by their length and offset. Those of a calendar
-- are given by the instants at which they begin, some before and some after now
-- as the caller sees it; if now is not among them, nothing is decided, and the
-- caller asks again with what it then knows of the server's clock.
--
-- ARGV: cost, or all, count, 1 for at most or nothing, thousandths of the
--       window to live longer, length, offset; or an empty length, and instants
-- Returns what was used, the window's end and the time, before the step; and the
-- units granted.
local call, key, cost, count = redis.call, KEYS[1], tonumber(ARGV[1]) or -math.huge, ARGV[2] + 0
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local length, finish = tonumber(ARGV[5]), false
if length then
  finish = now - (now - ARGV[6]) % length + length
else
  for i = 6, #ARGV - 1 do
    if ARGV[i] + 0 <= now and now < ARGV[i + 1] + 0 then
      finish = tonumber(ARGV[i + 1])
      length = finish - ARGV[i]
    end
  end
  if not finish then return {-1, 0, now} end
end
local value = call('GET', key)
local used, stale, over, before = 0, false, true, {0, 0, now}
if value then
  local count_text, end_text = string.match(value, '^(%d+) (%d+)$')
  if not count_text then return redis.error_reply('FOREIGN value') end
  if end_text + 0 > now then
    used, finish, over = tonumber(count_text), tonumber(end_text), false
    before = {used, finish, now}
    if used > count then used, stale = count, true end
    if finish > now + length then finish, stale = now + length, true end
  end
end
local free = count - used
if ARGV[3] == '1' and cost > free then cost = math.max(free, 1) end
if cost > free then cost = 0 elseif cost < -used then cost = -used end
if ARGV.dry then return before, cost end
if used + cost == 0 then
  if value and (not over or ARGV[1] == 'all') then call('DEL', key) end
elseif cost ~= 0 or stale then
  local left = finish - now
  call('SET', key, string.format('%.0f %.0f', used + cost, finish), 'PX', left + math.floor(length * ARGV[4] / 1000))
end
return before, cost, 0
