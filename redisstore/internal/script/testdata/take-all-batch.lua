local redis, KEYS, ARGV = redis, KEYS, ARGV
local function arguments(at)
  local n = math.abs(ARGV[at])
  if n == 0 then return nil, at + 1 end
  if n < 4 then return {ARGV[at + 1], ARGV[at + 2], n == 3 and ARGV[at + 3] or nil}, at + 1 + n end
  local list = {ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], n > 4 and ARGV[at + 5] or nil,
    n > 5 and ARGV[at + 6] or nil, n > 6 and ARGV[at + 7] or nil}
  for i = 8, n do list[i] = ARGV[at + i] end
  return list, at + 1 + n
end
local all, n, first, section, last, keys = {}, 0, 0, 1, nil, KEYS
local function add(m, list)
  all[m + 1] = -3
  for i = 1, #list do all[m + 1 + i] = list[i] end
  return m + 1 + #list
end
local function decide()
local redis, all, keys, KEYS, total = redis, all, keys, KEYS, #KEYS -- closer than those of the script
while first < total do
local at, fit = section + 2, ARGV[section + 1] == '1'
last = last or ARGV[section] == '' and total or first + ARGV[section] * 3 -- a failed request does not end a section
local instant = redis.call('TIME')
local overdraws1, ARGV1 = ARGV[at] + 0 < 0, nil
ARGV1, at = arguments(at)
local asked1, capacity1 = ARGV1[1] + 0, ARGV1[2] + 0
local unit1, mark1, how1, bound1, interval1, overdraft1, ceiling1 = 1000000, '', ARGV1[3], false, false, capacity1, capacity1
if how1 then
  if #how1 > 1 then how1, ceiling1 = string.sub(how1, 1, 1), capacity1 - string.sub(how1, 3) end
  overdraft1 = ARGV1[4] + 0
  if how1 == '1' or how1 == 'o' then interval1 = ARGV1[5] + 0 end
  if ARGV1[6] == 'u' then unit1, mark1 = 1000, 'u' end
  if ARGV1[7] then bound1 = ARGV1[7] + 0 end
end
local overdraws2, ARGV2 = ARGV[at] + 0 < 0, nil
ARGV2, at = arguments(at)
local sub2, asked2, count2 = string.sub, tonumber(ARGV2[1]) or -math.huge, ARGV2[2] + 0
local how2, keep2 = ARGV2[3], 0
if #how2 > 1 and asked2 > 0 then how2, keep2 = sub2(how2, 1, 1), sub2(how2, 3) + 0 end
local time2 = instant
local now2 = time2[1] * 1000 + math.floor(time2[2] / 1000)
local length2, close2 = tonumber(ARGV2[6]), false
local clocked2 = length2
if clocked2 then
  close2 = now2 - (now2 - ARGV2[7]) % length2 + length2
else
  for i = 7, #ARGV2 - 1 do
    if ARGV2[i] + 0 <= now2 and now2 < ARGV2[i + 1] + 0 then
      close2 = tonumber(ARGV2[i + 1])
      length2 = close2 - ARGV2[i]
    end
  end
  if not close2 then error {-1, 0, now2} end
end
local match2 = string.match
local current2 = close2 % 1000 == 0 and '^' .. string.format('%.0f', close2 / 1000) .. '(%d%d%d%d%d%d%d%d%d)$'
local overdraws3, ARGV3 = ARGV[at] + 0 < 0, nil
ARGV3, at = arguments(at)
local asked3, count3, period3 = ARGV3[1] + 0, ARGV3[2] + 0, ARGV3[3] + 0
local how3, keep3 = ARGV3[4], 0
if how3 and #how3 > 1 and asked3 > 0 then how3, keep3 = string.sub(how3, 1, 1), string.sub(how3, 3) + 0 end
while first < last do
local from, fits = first, fit
local reply1, list1 = 0, nil
KEYS[1] = keys[from + 1]
local rest1 = redis.call('PTTL', KEYS[1])
local value1, debt1, part1, stale1 = false, 0, 0, false
if rest1 > 0 then
  local text1 = redis.call('GET', KEYS[1])
  value1 = tonumber(text1)
  if value1 and mark1 == '' then
    if value1 > 0 or value1 % 1 ~= 0 then error({err = 'FOREIGN value'}) end
    if not string.find(text1, '^%-[1-9]%d*$') and text1 ~= '0' then error({err = 'FOREIGN value'}) end -- together
    debt1 = value1 + rest1 * unit1
  else
    local digits1, decimals1, micros1 = string.match(text1, '^(%-?%d+)%.?(%d*)(u?)$')
    if not digits1 or digits1 + 0 > 0 then error({err = 'FOREIGN value'}) end
    if decimals1 ~= '' and (#decimals1 ~= 3 or micros1 == '') then error({err = 'FOREIGN value'}) end
    if micros1 == mark1 then
      debt1, part1 = digits1 + rest1 * unit1, tonumber(decimals1) or 0
    elseif mark1 == 'u' then -- after a step back, the debt in nanoseconds may exceed a double
      part1 = math.fmod(-digits1, 1000)
      debt1 = (digits1 + part1) / 1000 + rest1 * unit1
    else
      debt1 = (digits1 + rest1 * 1000) * 1000 - (tonumber(decimals1) or 0)
    end
    value1 = false
  end
  if debt1 <= 0 then
    debt1, part1 = 0, 0
  elseif debt1 > capacity1 then
    local most1 = capacity1 + math.max(capacity1, overdraft1, capacity1 == 0 and 4503599627370496 or 60000 * unit1)
    if debt1 > most1 then debt1, part1, stale1 = most1, 0, true end
  end
elseif rest1 == -1 then
  error({err = 'FOREIGN key without expiry'})
end
local most1, late1, charge1 = ceiling1, false, asked1
if bound1 then most1 = bound1 end
if interval1 and charge1 > 0 then
  local free1 = 0
  if how1 == 'o' then
    free1 = math.max(math.floor((capacity1 + overdraft1 - debt1) / interval1), 0) * interval1
    charge1, late1 = math.min(charge1, free1), false
    most1 = debt1 + charge1
  elseif debt1 < most1 then
    free1 = math.min(math.floor((most1 - debt1) / interval1) * interval1, capacity1)
  end
  if charge1 > free1 then charge1 = math.max(free1, interval1) end
end
if charge1 > 0 and (debt1 + charge1 > most1 or late1) then charge1 = 0 end
if charge1 == 0 and asked1 > 0 and not overdraws1 then fits = false end
local reply2, list2 = 0, nil
KEYS[2] = keys[from + 2]
local value2 = redis.call('GET', KEYS[2])
local used2, finish2, over2, stale2, whole2 = 0, close2, true, false, false
local units2 = value2 and current2 and match2(value2, current2)
if units2 then
  used2, over2, whole2 = units2 + 0, false, true
elseif value2 then
  local ending2, counted2 = match2(value2, '^(%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d)$')
  if ending2 then
    ending2 = ending2 * 1000
  else
    counted2, ending2 = match2(value2, '^(%d+) (%d+)$')
  end
  if not ending2 then error({err = 'FOREIGN value'}) end
  if ending2 + 0 > now2 then used2, finish2, over2 = counted2 + 0, ending2 + 0, false end
end
local found2, ending2 = used2, finish2
if finish2 > now2 + length2 then finish2, stale2 = now2 + length2, true end
local free2, cost2 = count2 - used2 - keep2, asked2
if cost2 > free2 and cost2 > 0 then
  if how2 == 'o' then
    cost2 = math.min(cost2, math.max(free2 + ARGV2[4], 0))
  elseif how2 == '1' then
    cost2 = math.max(free2, 0)
  else
    cost2 = 0
  end
elseif cost2 < -used2 then
  cost2 = -used2
end
if cost2 == 0 and asked2 > 0 and not overdraws2 then fits = false end
local reply3, list3 = 0, nil
KEYS[3] = keys[from + 3]
local rest3 = redis.call('PTTL', KEYS[3])
local value3, stale3 = 0, false
if rest3 > 0 then
  local text3 = redis.call('GET', KEYS[3])
  value3 = tonumber(text3)
  if not value3 or value3 < 1 or value3 % 1 ~= 0 then error({err = 'FOREIGN value'}) end
  if not string.find(text3, '^[1-9]%d*$') then error({err = 'FOREIGN value'}) end -- together
elseif rest3 == -1 then
  error({err = 'FOREIGN key without expiry'})
end
local current3 = value3 % 67108864
local previous3 = (value3 - current3) / 67108864
local left3, kept3, overdrawn3 = rest3 - period3, true, false
if previous3 >= 67108864 then
  previous3, overdrawn3 = previous3 - 67108864, left3 > 0
  if not overdrawn3 then current3 = math.min(current3, count3) end
end
if left3 <= 0 then previous3, current3, left3, kept3 = current3, 0, rest3, false end
if previous3 == 0 and current3 == 0 then left3, kept3 = period3, false end
if left3 > period3 then left3, stale3 = period3, true end
local share3 = 0
if previous3 > 0 then
  share3 = math.ceil(previous3 * left3 / period3)
  if previous3 * left3 >= 9007199254740992 then
    local high3, low3 = math.floor(previous3 / 8192), previous3 % 8192
    local whole3 = math.floor(high3 * left3 / period3)
    share3 = whole3 * 8192 + math.ceil(((high3 * left3 - whole3 * period3) * 8192 + low3 * left3) / period3)
  end
end
local free3, cost3 = count3 - current3 - share3 - keep3, asked3
if cost3 > free3 and cost3 > 0 then
  if how3 == 'o' then
    cost3 = math.min(cost3, math.max(free3 + (ARGV3[5] or count3), 0))
  elseif how3 == '1' then
    cost3 = math.max(free3, 0)
  else
    cost3 = 0
  end
elseif cost3 < -current3 - previous3 then
  cost3 = -current3 - previous3
end
if cost3 == 0 and asked3 > 0 and not overdraws3 then fits = false end
if not fits then charge1 = 0 end
do
local after1 = debt1 + charge1
if after1 <= 0 then
  if rest1 >= 0 then redis.call('DEL', KEYS[1]) end
elseif charge1 ~= 0 or stale1 then
  local moved1 = after1 - rest1 * unit1
  if value1 and not stale1 and moved1 <= 0 then
    if debt1 > 0 and charge1 == asked1 then
      redis.call('INCRBY', KEYS[1], ARGV1[1])
    else
      redis.call('INCRBY', KEYS[1], moved1 - value1)
    end
  else
    local ttl1 = math.max(math.floor(2 * capacity1 / unit1), 1000)
    if after1 > capacity1 then ttl1 = math.max(ttl1, math.ceil(after1 / unit1)) end
    moved1 = after1 - ttl1 * unit1
    if part1 > 0 then
      moved1 = string.format('-%.0f.%03d', math.abs(moved1), part1) .. mark1
    elseif mark1 ~= '' then
      moved1 = string.format('%.0f', moved1) .. mark1
    end
    redis.call('SET', KEYS[1], moved1, 'PX', ttl1)
  end
end
if after1 <= capacity1 or how1 == 'o' then reply1 = debt1, charge1, 0 else
reply1 = debt1, charge1, math.ceil((after1 - capacity1) / unit1)
end 
end
if not fits then cost2 = 0 end
do
local after2 = used2 + cost2
if after2 == 0 then
  if value2 and (not over2 or ARGV2[1] == 'all') then redis.call('DEL', KEYS[2]) end
elseif whole2 and not stale2 and after2 < 1000000000 then
  if cost2 == asked2 and cost2 ~= 0 then
    redis.call('INCRBY', KEYS[2], ARGV2[1]) -- it is text already
  elseif cost2 ~= 0 then
    redis.call('INCRBY', KEYS[2], cost2)
  end
elseif cost2 ~= 0 or stale2 then
  local text2, left2 = string.format('%.0f %.0f', after2, finish2), finish2 - now2
  if finish2 % 1000 == 0 and finish2 >= 1000000000000 and finish2 < 9223372036000 and after2 < 1000000000 then
    text2 = string.format('%.0f%09.0f', finish2 / 1000, after2)
  end
  left2 = left2 + math.floor(length2 * ARGV2[5] / 1000)
  redis.call('SET', KEYS[2], text2, 'PX', left2)
end
local both2 = found2 * (length2 + 1) + (ending2 - now2)
if clocked2 and ending2 - now2 <= length2 and both2 < 9007199254740992 then reply2 = both2 else
list2 = {found2, ending2, now2}, cost2, 0
end 
end
if not fits then cost3 = 0 end
do
current3 = current3 + cost3
if current3 < 0 then previous3, current3 = previous3 + current3, 0 end
if previous3 == 0 and current3 == 0 then
  if rest3 >= 0 then redis.call('DEL', KEYS[3]) end
elseif cost3 ~= 0 or stale3 then
  local after3 = previous3 * 67108864 + current3
  if cost3 ~= 0 then overdrawn3 = (overdrawn3 or cost3 > 0) and cost3 > free3 and current3 > 0 end
  if overdrawn3 then after3 = after3 + 4503599627370496 end
  if kept3 and not stale3 and cost3 > 0 and after3 - value3 == asked3 then
    redis.call('INCRBY', KEYS[3], ARGV3[1])
  elseif kept3 and not stale3 then
    redis.call('INCRBY', KEYS[3], after3 - value3)
  else
    redis.call('SET', KEYS[3], after3, 'PX', left3 + period3)
  end
end
if value3 == 0 then reply3 = 0 else
local both3 = value3 * (2 * period3 + 1) + rest3
if rest3 <= 2 * period3 and both3 < 9007199254740992 then reply3 = both3 else
list3 = {value3, rest3}, cost3, 0
end end 
end
local m = n + 1
all[m] = fits and 1 or 0
if list1 then m = add(m, list1) else m = m + 1 all[m] = reply1 end
if list2 then m = add(m, list2) else m = m + 1 all[m] = reply2 end
if list3 then m = add(m, list3) else m = m + 1 all[m] = reply3 end
n, first = m, from + 3
end
section, last = at, nil
end
end
while true do
  local done, reply = pcall(decide)
  if done then return reply or all end
  if #keys == 3 then return type(reply) == 'table' and reply or redis.error_reply(reply) end
  n, first = n + 1, first + 3
  all[n] = -2
end
