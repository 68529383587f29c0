-- Several steps, all or nothing. Each is tried without writing, with the total cost
-- on its key. If all fit they are taken one by one; otherwise they peek. A step that
-- overdraws always fits. Under an ID, nothing is taken if a grant is recorded, and
-- nothing is settled unless all are; see record.lua. Permits are their own record; if all
-- grants are recorded, they are renewed.
--
-- KEYS: the steps', and under an ID the records'
-- ARGV: 1 to take, 0 to only try, 2 if they cannot fit, but permits may be renewed, or s to
--       settle; how long grants are remembered, or 0 without an ID. For each step: its
--       letter, a capital if it overdraws; under an ID, what one unit costs it, 0 if it is
--       not recorded, or -1 if it takes permits, and the next two arguments of once.lua;
--       the number of arguments to try with, and those; the number of arguments to take
--       with, and those, or 0 if they are the same. To settle, the first of the arguments
--       to take with is in units.
-- Returns 1 if all were taken; under an ID, for each step what once.lua returns first;
-- and then the replies of the steps one after the other.
local items, at, lifetime, n, keys, KEYS = {}, 3, tonumber(ARGV[2]), #KEYS, KEYS, {}
if lifetime > 0 then
  n, time = n / 2, redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
for i = 1, n do
  local letter = string.lower(ARGV[at])
  local item = {key = {keys[i]}, step = steps[letter], overdraws = letter ~= ARGV[at], unit = 0}
  at = at + 1
  if lifetime > 0 then
    item.unit, item.scale, item.most, at = ARGV[at] + 0, ARGV[at + 1] + 0, ARGV[at + 2] + 0, at + 3
  end
  item.try, at = arguments(at)
  item.take, at = arguments(at)
  if not item.take then item.take = item.try end
  items[i] = item
end
local settles, replies, all = ARGV[1] == 's', {}, {0}
local function append(units, acting, owed, due)
  local m = #all
  all[m + 1], all[m + 2], all[m + 3], all[m + 4] = units, acting, owed, due
end
local fits, takes, known = (settles or ARGV[1] == '1') and 1 or 0, 0, 0
for i, item in ipairs(items) do
  if item.unit ~= 0 then takes = takes + 1 end
  KEYS[1] = keys[n + i]
  local value = item.unit > 0 and redis.call('GET', KEYS[1])
  if value then item.units, item.acting, item.due, item.owed, item.refunded = recall(value, pttl(KEYS)) end
  if item.units == false then return item.acting end
  if lifetime > 0 and item.units then
    known = known + 1
    append(item.units, math.max(item.acting - now, 0), item.owed, item.due)
  elseif lifetime > 0 then
    append(-1, 0, 0, 0)
  end
end
for i, item in ipairs(items) do
  item.try.dry = true
  local reply, granted, _, held = item.step(item.key, item.try)
  if type(reply) == 'table' and reply.err then return reply end
  if not granted or granted == 0 and item.try[1] + 0 > 0 and not item.overdraws then fits = 0 end
  if item.unit < 0 and held and held > 0 then known, all[4 * i - 2] = known + 1, held end
  item.try.dry, item.try.due, replies[i] = false, false, reply
end
if settles and known < takes or known > 0 and not settles then fits = 0 end
local renews = known > 0 and known == takes and ARGV[1] ~= '0'
all[1] = fits
for i, item in ipairs(items) do
  KEYS[1] = keys[n + i]
  local reply, charged, delay
  if fits == 0 and not (renews and item.unit < 0) then
    item.take[1] = 0
    item.step(item.key, item.take)
    reply = replies[i]
  elseif settles then
    local change, units, due, owed = math.min(item.take[1] - item.units, item.most)
    reply, charged, units, due, owed = move(item.step, item.key, item.take, item.units, item.due, item.owed, change, item.unit, item.scale)
    update(KEYS, units, item.acting, due, owed, item.refunded)
  else
    reply, charged, delay = item.step(item.key, item.take)
    if item.unit > 0 then
      local record = string.format('%d %d %d', charged / item.unit, now + delay, now + item.take.due)
      redis.call('SET', KEYS[1], record, 'PX', lifetime)
    end
  end
  if type(reply) ~= 'table' then reply = {reply} end
  for _, number in ipairs(reply) do all[#all + 1] = number end
end
return all
