-- Decides whole requests: for each, every limit is checked first; then all are charged, or none.
--
-- The arithmetic is that of src/algorithm/, and a property test holds the two together. Time is whole
-- microseconds. Numbers here are doubles, so every intermediate stays below 2^53, where they are exact.
--
-- KEYS: every counter once.
-- ARGV: the time, where 0 stands for this server's clock; the number of requests; then for each
--   request twice the number of its checks, plus 1 if it checks a counter twice; then for each check the
--   number of its key, and what is asked, as words: algorithm (z, f, c, l, b), role (0 hard, 1 shadow, 2
--   and up the number of a quota), 1 if denied hits are charged, direction (0 look, 1 charge, 2 refund),
--   of a refund the last instant at which it is made, and the algorithm's own numbers. Calls ask the same
--   of many keys, and read it once.
-- Reply: the time; then for each request 1 if it is denied, else 0, and for each of its checks the
--   counter's state before it, as the algorithm has it.

local CHARGE, REFUND = 1, 2
local HARD, SHADOW = 0, 1

-- As in src/algorithm/: counts saturate here.
local COUNT_MAX = 2 ^ 36

local floor, min, max = math.floor, math.min, math.max
local format, match, gmatch = string.format, string.match, string.gmatch
local call = redis.call

local now = tonumber(ARGV[1])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local reply = {now}
local replies = 1

local function push(number)
  replies = replies + 1
  reply[replies] = number
end

-- A key lives a second longer than it has to, so that a clock which steps back by less finds it.
local function ttl(micros)
  return format('%d', floor(micros / 1000) + 1001)
end

local function div_ceil(a, b)
  local up = a + b - 1
  return (up - up % b) / b
end

-- Each algorithm, defined when it is first asked for: `read` its numbers from the words; `load` the
-- state; `advance` it to now, and tell if it was absurdly far ahead and had to be pulled back; say
-- whether a check `admits`; `charge` it; `push` what the answer is made of; `save` it.
local define = {}

local function read_window(spec, numbers)
  spec.hits, spec.requests, spec.window = numbers[1], numbers[2], numbers[3]
end

define.z = function()
  local function nothing() end

  -- A limit of zero requests, which needs no counter.
  return {
    read = nothing,
    load = function() return {} end,
    advance = nothing,
    admits = function(spec) return spec.direction == REFUND end,
    charge = nothing,
    push = nothing,
    save = nothing,
  }
end
