-- Several steps as one: all of them or none. Each is tried without writing, with
-- all that is asked of its key; if every one fits they are taken one by one, and
-- otherwise only looked at.
--
-- ARGV: 1 if they may be taken, or 0 to only try. For each key: the step's letter;
--       how many arguments follow, and those, with which it is tried; how many
--       follow, and those, with which it is taken, or 0 if they are the same.
-- Returns 1 if all were taken, and then what each step returns, in turn.
local members, at = {}, 2
local function arguments()
  local n = tonumber(ARGV[at])
  local list = {unpack(ARGV, at + 1, at + n)}
  at = at + 1 + n
  return list
end
for i = 1, #KEYS do
  local member = {key = {KEYS[i]}, step = steps[ARGV[at]]}
  at = at + 1
  member.try = arguments()
  member.take = arguments()
  if #member.take == 0 then member.take = {unpack(member.try)} end
  members[i] = member
end
local fits, replies = tonumber(ARGV[1]), {}
for i, member in ipairs(members) do
  member.try.dry = true
  local reply, granted = member.step(member.key, member.try)
  if type(reply) == 'table' and reply.err then return reply end
  if not granted or granted == 0 and member.try[1] + 0 > 0 then fits = 0 end
  replies[i] = reply
end
local all = {fits}
for i, member in ipairs(members) do
  if fits == 0 then member.take[1] = 0 end
  local reply = member.step(member.key, member.take)
  if fits == 0 then reply = replies[i] end
  if type(reply) ~= 'table' then reply = {reply} end
  for _, number in ipairs(reply) do all[#all + 1] = number end
end
return all
