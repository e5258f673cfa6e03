-- sliding_window_log: a list of instants, oldest first, one per hit. Instants never fall, because the
-- key's time never runs backwards, so that a list is as good as a sorted set, at a tenth of the memory.
define.l = function()
  local CHUNK = 1000

  local function log_push(key, at, hits)
    local instant = format('%d', at)
    while hits > 0 do
      local instants = {}
      for i = 1, min(hits, CHUNK) do
        instants[i] = instant
      end
      call('RPUSH', key, unpack(instants))
      hits = hits - #instants
    end
  end

  local function log_at(key, position)
    return tonumber(call('LINDEX', key, position))
  end

  return {
    read = read_window,
    load = function(key, spec)
      local newest = log_at(key, -1)
      return {key = key, list = key, total = newest and call('LLEN', key) or 0, newest = newest or 0}
    end,
    advance = function(spec, state)
      local key = state.key
      if not key then
        return
      end
      if state.total > 0 and state.newest > now + spec.window then
        call('DEL', key)
        log_push(key, now, state.total)
        state.newest = now
        call('PEXPIRE', key, ttl(spec.window))
      end
      local expired = now - spec.window
      while state.total > 0 do
        if log_at(key, 0) > expired then
          return
        end
        local pops = min(state.total, 128)
        while log_at(key, pops - 1) > expired do
          pops = floor(pops / 2)
        end
        call('LPOP', key, pops)
        state.total = state.total - pops
      end
      state.newest = 0
    end,
    admits = function(spec, state)
      return spec.direction == REFUND or state.total + spec.hits <= spec.requests
    end,
    charge = function(spec, state)
      local key = state.key
      if spec.direction == CHARGE then
        local hits = min(spec.hits, spec.requests)
        local dropped = max(state.total + hits - spec.requests, 0)
        local at = max(state.newest, now)
        if key then
          log_push(key, at, hits)
          if dropped > 0 then
            call('LTRIM', key, dropped, -1)
          end
        else
          local of_listed = min(dropped, state.listed)
          state.offset, state.listed = state.offset + of_listed, state.listed - of_listed
        end
        state.total = state.total + hits - dropped
        state.newest = at
        return
      end
      local hits = min(spec.hits, state.total)
      state.total = state.total - hits
      if key and hits > 0 then
        call('RPOP', key, hits)
        -- A key that is gone must not be touched: its slot may be on its way to another node.
        state.newest = state.total > 0 and log_at(key, -1) or 0
      elseif not key and state.total <= state.listed then
        state.listed = state.total
        state.newest = state.total > 0 and log_at(state.list, state.offset + state.total - 1) or 0
      end
    end,
    -- The instant that decides the answer is that of the hit whose leaving makes room, or the newest
    -- one left after a refund.
    push = function(spec, state)
      local decisive = 0
      if spec.direction == REFUND then
        decisive = state.total - spec.hits
      elseif state.total + spec.hits > spec.requests then
        decisive = state.total + spec.hits - spec.requests
        if spec.charge_denied and spec.direction == CHARGE then
          decisive = decisive + spec.hits
        end
      end
      decisive = max(min(decisive, state.total), 0)
      local instant = 0
      if decisive > (state.listed or state.total) then
        instant = state.newest
      elseif decisive > 0 then
        instant = log_at(state.list, (state.offset or 0) + decisive - 1)
      end
      push(state.total)
      push(state.newest)
      push(decisive)
      push(instant)
    end,
    save = function(key, spec, state)
      if state.total > 0 then
        call('PEXPIRE', key, ttl(state.newest + spec.window - now))
      end
    end,
  }
end
