-- Returns the changes after the one that the caller has seen last: "more" or "done", the
-- number and text of the last one returned, and fields with their records. ARGV is the number and
-- text of the change seen, and the most changes to return. An array of one string says that
-- the hash does not have that change.
local seen = number(ARGV[1])
if seen > last or last - seen >= ring or seen > 0 and change(seen) ~= ARGV[2] then
  return {'lost'}
end
local upto = math.min(last, seen + number(ARGV[3]))
local reply = {upto < last and 'more' or 'done', whole(upto), upto > 0 and change(upto) or ''}
for n = seen + 1, upto do
  local field = string.match(change(n), '^%d+ %d+ (.*)$')
  local record = field and get(field)
  if record and #record <= 8192 then
    reply[#reply + 1] = field
    reply[#reply + 1] = record
  end
end
return reply
