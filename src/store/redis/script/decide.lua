-- The algorithms in use, and of each distinct question what it says.
local algorithms, specs = {}, {}

local function algorithm_of(letter)
  local algorithm = algorithms[letter]
  if not algorithm then
    algorithm = define[letter]()
    algorithms[letter] = algorithm
  end
  return algorithm
end

local function spec_of(text)
  local spec = specs[text]
  if not spec then
    local words, numbers = gmatch(text, '%S+'), {}
    spec = {algorithm = algorithm_of(words())}
    spec.role, spec.charge_denied, spec.direction = tonumber(words()), words() == '1', tonumber(words())
    spec.changes = spec.direction == CHARGE or (spec.direction == REFUND and tonumber(words()) >= now)
    for word in words do
      numbers[#numbers + 1] = tonumber(word)
    end
    spec.algorithm.read(spec, numbers)
    specs[text] = spec
  end
  return spec
end

-- States by key number, as charged so far, and the last question that changed each.
local states = {}
local changed_by = {}

local function state_of(number, spec)
  local state = states[number]
  if not state then
    state = spec.algorithm.load(KEYS[number], spec)
    states[number] = state
  end
  if spec.algorithm.advance(spec, state) then
    changed_by[number] = spec
  end
  return state
end

local function charge(number, spec)
  if spec.changes then
    spec.algorithm.charge(spec, state_of(number, spec))
    changed_by[number] = spec
  end
end

-- To be charged on trial. A log's has no key: of its hits, those `listed` are the list's from `offset`
-- on, and the rest are the newest.
local function copy(state)
  local copied = {}
  for field, value in pairs(state) do
    copied[field] = value
  end
  copied.key, copied.offset, copied.listed = nil, 0, state.total
  return copied
end

-- The checks of a request: the numbers of their keys, what they ask, and whether they are admitted.
local keys, asked, admitted = {}, {}, {}

-- In turn; a counter that the request checks twice is seen as its first check leaves it.
local function check_all(count, has_twins)
  local seen = {}
  for i = 1, count do
    local spec, state = asked[i], state_of(keys[i], asked[i])
    local algorithm = spec.algorithm
    if has_twins then
      state = seen[keys[i]] or copy(state)
      seen[keys[i]] = state
      algorithm.advance(spec, state)
    end
    algorithm.push(spec, state)
    admitted[i] = algorithm.admits(spec, state)
    if has_twins and spec.changes and (admitted[i] or spec.charge_denied) then
      algorithm.charge(spec, state)
    end
  end
end

-- One hard limit over denies, or every quota over.
local function is_denied(count)
  local quotas = {}
  for i = 1, count do
    local role = asked[i].role
    if role == HARD then
      if not admitted[i] then
        return true
      end
    elseif role ~= SHADOW then
      quotas[role] = quotas[role] or not admitted[i]
    end
  end
  local all_over = next(quotas) ~= nil
  for _, over in pairs(quotas) do
    all_over = all_over and over
  end
  return all_over
end

-- The most frequent request by far: one check, of a hard limit.
local function decide_one(number, spec)
  local state = state_of(number, spec)
  spec.algorithm.push(spec, state)
  local fits = spec.algorithm.admits(spec, state)
  if fits or spec.charge_denied then
    charge(number, spec)
  end
  return not fits
end

local function decide(count, has_twins)
  check_all(count, has_twins)
  local denied = is_denied(count)
  for i = 1, count do
    if asked[i].charge_denied or (admitted[i] and not denied) then
      charge(keys[i], asked[i])
    end
  end
  return denied
end

local argument = 2
for _ = 1, tonumber(ARGV[2]) do
  local header = tonumber(ARGV[argument + 1])
  argument = argument + 1
  local count = floor(header / 2)
  for i = 1, count do
    keys[i], asked[i] = tonumber(ARGV[argument + 1]), spec_of(ARGV[argument + 2])
    argument = argument + 2
  end
  push(0)
  local verdict, denied = replies, nil
  if count == 1 and asked[1].role == HARD then
    denied = decide_one(keys[1], asked[1])
  else
    denied = decide(count, header % 2 == 1)
  end
  if denied then
    reply[verdict] = 1
  end
end
for number, spec in pairs(changed_by) do
  spec.algorithm.save(KEYS[number], spec, states[number])
end
return reply
