-- Health of an InferenceService, from its status alone. Degraded means that a person has to act.
local function condition(kind)
  for _, c in ipairs((obj.status or {}).conditions or {}) do
    if c.type == kind then
      return c
    end
  end
  return {status = "Unknown", reason = "NotReported", message = "the operator has not reported yet"}
end

local function said(c)
  if c.message ~= nil and c.message ~= "" then
    return c.reason .. ": " .. c.message
  end
  return c.reason
end

local observed = (obj.status or {}).observedGeneration
if observed == nil or observed ~= obj.metadata.generation then
  return {status = "Progressing", message = "the operator has not seen the newest spec yet"}
end

local ready, reconciling, stalled = condition("Ready"), condition("Reconciling"), condition("Stalled")
if stalled.status == "True" then
  return {status = "Degraded", message = said(stalled)}
end
if reconciling.status == "True" then
  return {status = "Progressing", message = said(reconciling)}
end
if ready.status == "True" then
  -- spec.suspend and zero replicas are healthy too: nothing runs, as was asked.
  return {status = "Healthy", message = said(ready)}
end
if obj.spec.paused == true then
  return {status = "Suspended", message = said(reconciling)}
end
return {status = "Progressing", message = said(ready)}
