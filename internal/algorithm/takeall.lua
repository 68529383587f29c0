-- Several steps, all or nothing. Each is tried without writing, with the total cost
-- on its key. If all fit they are taken one by one; otherwise they peek. A step that
-- overdraws always fits.
--
-- ARGV: 1 to take, or 0 to only try. For each key: the step's letter, a capital if it
--       overdraws; the number of arguments to try with, and those; the number of
--       arguments to take with, and those, or 0 if they are the same.
-- Returns 1 if all were taken, and then the replies of the steps one after the other.
local items, at = {}, 2
local function arguments()
  local n = tonumber(ARGV[at])
  local list = {unpack(ARGV, at + 1, at + n)}
  at = at + 1 + n
  return list
end
for i = 1, #KEYS do
  local letter = string.lower(ARGV[at])
  local item = {key = {KEYS[i]}, step = steps[letter], overdraws = letter ~= ARGV[at]}
  at = at + 1
  item.try = arguments()
  item.take = arguments()
  if #item.take == 0 then item.take = {unpack(item.try)} end
  items[i] = item
end
local fits, replies = tonumber(ARGV[1]), {}
for i, item in ipairs(items) do
  item.try.dry = true
  local reply, granted = item.step(item.key, item.try)
  if type(reply) == 'table' and reply.err then return reply end
  if not granted or granted == 0 and item.try[1] + 0 > 0 and not item.overdraws then fits = 0 end
  replies[i] = reply
end
local all = {fits}
for i, item in ipairs(items) do
  if fits == 0 then item.take[1] = 0 end
  local reply = item.step(item.key, item.take)
  if fits == 0 then reply = replies[i] end
  if type(reply) ~= 'table' then reply = {reply} end
  for _, number in ipairs(reply) do all[#all + 1] = number end
end
return all
