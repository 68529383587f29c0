local redis, KEYS, ARGV = redis, KEYS, ARGV
local asked, count, length = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local size, how, keep = ARGV[4] + 1, ARGV[5], 0
if how and #how > 1 and asked > 0 then how, keep = string.sub(how, 1, 1), string.sub(how, 3) + 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local bucket = math.floor(now / length)
local function step(KEYS, i)
local value = redis.call('GET', KEYS[1])
local newest, counts, stale = bucket, {}, false
if value then
  local head, tail = string.match(value, '^(%d+)( [%d ]*)$')
  if not head then return redis.error_reply('FOREIGN value') end
  newest = tonumber(head)
  for n in string.gmatch(tail, '%d+') do counts[#counts + 1] = tonumber(n) end
  if #counts > size then return redis.error_reply('FOREIGN value') end
end
if newest > bucket then
  local kept, ahead = {0}, newest - bucket
  for i, n in ipairs(counts) do
    if i <= ahead + 1 then kept[1] = kept[1] + n else kept[#kept + 1] = n end
  end
  counts, newest, stale = kept, bucket, true
end
local last = 1
while last <= #counts and counts[last] == 0 do last = last + 1 end
if (newest - last + 1 + size) * length <= now then counts, stale = {}, value end
local live, used = math.min(size - (bucket - newest), #counts), 0
for i = 1, live do used = used + counts[i] end
local free, cost, wait, own = count - used - keep, asked, 0, 1
if how == '1' and cost > free and cost > 0 then cost = math.max(free, 1) end
if cost > free and cost > 0 then
  local missing, i = cost - free, live
  while i > 0 and missing > counts[i] do missing, i = missing - counts[i], i - 1 end
  wait = (newest - i + 1 + size) * length - now
  cost = 0
elseif cost < -used then
  cost = -used
end
local charge = cost
if ARGV.dry then charge = 0 end
if charge ~= 0 then
  local moved = {}
  if live > 0 then
    for i = 1, bucket - newest do moved[i] = 0 end
    for i = 1, live do moved[#moved + 1] = counts[i] end
  else
    moved[1] = 0
  end
  counts, newest, live, used = moved, bucket, #moved, used + charge
  local i = own
  counts[1] = counts[1] + math.max(charge, 0)
  while charge < 0 do
    local gone = math.min(counts[i], -charge)
    counts[i], charge, i = counts[i] - gone, charge + gone, i + 1
  end
end
last = 1
while last <= #counts and counts[last] == 0 do last = last + 1 end
local reset = 0
if last <= #counts then reset = (newest - last + 1 + size) * length - now end
if not ARGV.dry and (cost ~= 0 or stale) then
  if reset > 0 then
    local text = newest .. ' ' .. table.concat(counts, ' ')
    redis.call('SET', KEYS[1], text, 'PX', reset)
  elseif value then
    redis.call('DEL', KEYS[1])
  end
end
if used == 0 then reset = 0 end
return {ARGV.dry and 0 or cost, used, wait, reset}, cost, 0
end
local all, n, key = {}, 0, {''}
for i = 1, #KEYS do
  key[1] = KEYS[i]
  local done, reply = pcall(step, key, i)
  if not done or type(reply) == 'table' and reply.err then reply = -2 end
  n = n + 1
  if type(reply) == 'table' then
    all[n] = -3
    for j = 1, #reply do all[n + j] = reply[j] end
    n = n + #reply
  else
    all[n] = reply
  end
end
return all
