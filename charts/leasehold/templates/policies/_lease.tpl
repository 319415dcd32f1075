{{/*
What an update of a Lease says, before and after, for the policies of Leases. The words are those of src/engine/record.rs
and change.rs. Needs the variables `operator`, `me` and `lock`.
*/}}
{{- define "leasehold.policies.leaseVariables" -}}
- name: may
  expression: "authorizer.group('leasehold.dev').resource('distributedlocks').namespace(request.namespace).name(variables.lock)"
- {name: mayUse, expression: "variables.may.check('use').allowed()"}
- {name: mayRevoke, expression: "variables.may.check('revoke').allowed()"}
- {name: uid, expression: "string(oldObject.metadata.uid)"}
- {name: revision, expression: "int(oldObject.metadata.resourceVersion)"}
- {name: oldNotes, expression: "oldObject.metadata.?annotations.orValue({})"}
- {name: newNotes, expression: "object.metadata.?annotations.orValue({})"}
- {name: oldHolder, expression: "oldObject.spec.?holderIdentity.orValue('')"}
- {name: newHolder, expression: "object.spec.?holderIdentity.orValue('')"}
- {name: oldCount, expression: "oldObject.spec.?leaseTransitions.orValue(0)"}
- {name: newCount, expression: "object.spec.?leaseTransitions.orValue(0)"}
- {name: seconds, expression: "object.spec.?leaseDurationSeconds.orValue(0)"}
- {name: oldNext, expression: "variables.oldNotes[?'leasehold.dev/next'].orValue('')"}
- {name: newNext, expression: "variables.newNotes[?'leasehold.dev/next'].orValue('')"}
- {name: oldEnded, expression: "variables.oldNotes[?'leasehold.dev/ended'].orValue('')"}
- {name: newEnded, expression: "variables.newNotes[?'leasehold.dev/ended'].orValue('')"}
- {name: oldGrant, expression: "variables.oldNotes[?'leasehold.dev/grant'].orValue('')"}
- {name: newGrant, expression: "variables.newNotes[?'leasehold.dev/grant'].orValue('')"}
# v1;<lease uid>;<leaseTransitions>;<token>;<hold>;<pod name>/<pod uid>;<holderIdentity>
- {name: oldParts, expression: "variables.oldGrant.matches('(?s)^v1;[^;]+;[0-9]{1,10};[1-9][0-9]{0,15};(Heartbeat|Fixed|Pod);[^;/]*/[^;]*;.+$') ? variables.oldGrant.split(';', 7) : []"}
- {name: newParts, expression: "variables.newGrant.matches('(?s)^v1;[^;]+;[0-9]{1,10};[1-9][0-9]{0,15};(Heartbeat|Fixed|Pod);[^;/]*/[^;/]*;.+$') ? variables.newGrant.split(';', 7) : []"}
# Whether it speaks of the holder that the Lease has: annotations outlive their grant.
- {name: oldCounts, expression: "variables.oldHolder != '' && variables.oldParts.size() == 7 && variables.oldParts[1] == variables.uid && variables.oldParts[2] == string(variables.oldCount) && variables.oldParts[6] == variables.oldHolder"}
- {name: newCounts, expression: "variables.newHolder != '' && variables.newParts.size() == 7 && variables.newParts[1] == variables.uid && variables.newParts[2] == string(variables.newCount) && variables.newParts[6] == variables.newHolder"}
- {name: newToken, expression: "variables.newParts.size() == 7 ? int(variables.newParts[3]) : 0"}
- {name: newHold, expression: "variables.newParts.size() == 7 ? variables.newParts[4] : ''"}
- {name: newPod, expression: "variables.newParts.size() == 7 ? variables.newParts[5] : '/'"}
- {name: oldPod, expression: "variables.oldCounts ? variables.oldParts[5] : '/'"}
# The tokens that the annotations tell of, whatever grant they speak of; one above 2^52 is believed by nobody.
- {name: endedToken, expression: "variables.oldEnded.matches('^v1;[^;]*;[0-9]{1,10};[0-9]{1,16};') && int(variables.oldEnded.split(';', 5)[3]) <= 4503599627370496 ? int(variables.oldEnded.split(';', 5)[3]) : 0"}
- {name: grantToken, expression: "variables.oldParts.size() == 7 && int(variables.oldParts[3]) <= 4503599627370496 ? int(variables.oldParts[3]) : 0"}
- {name: lastToken, expression: "variables.grantToken > variables.endedToken ? variables.grantToken : variables.endedToken"}
- {name: highest, expression: "(variables.lastToken > variables.revision ? variables.lastToken : variables.revision) + 1000000000"}
# v1;<lease uid>;<leaseTransitions>;<token>;<how>;<by>;<reason>: of the grant that this write ends.
- {name: endedParts, expression: "variables.newEnded != variables.oldEnded && variables.newEnded.matches('(?s)^v1;[^;]+;[0-9]{1,10};[0-9]{1,16};(Released|Expired|Revoked|Ended);[^;]*;') ? variables.newEnded.split(';', 7) : []"}
- {name: tellsTheEnd, expression: "variables.endedParts.size() == 7 && variables.endedParts[1] == variables.uid && variables.endedParts[2] == string(variables.oldCount) && variables.endedParts[3] == (variables.oldCounts ? variables.oldParts[3] : '0')"}
- {name: how, expression: "variables.endedParts.size() == 7 ? variables.endedParts[4] : ''"}
# What kind of write it is.
- {name: isTake, expression: "variables.newHolder != '' && (variables.newHolder != variables.oldHolder || variables.newCount != variables.oldCount)"}
- {name: isEnd, expression: "variables.newHolder == '' && variables.oldHolder != ''"}
- {name: staysHeld, expression: "variables.newHolder != '' && !variables.isTake"}
- name: sameSpec
  expression: >-
    variables.newHolder == variables.oldHolder && variables.newCount == variables.oldCount
    && object.spec.?leaseDurationSeconds == oldObject.spec.?leaseDurationSeconds
    && object.spec.?acquireTime == oldObject.spec.?acquireTime && object.spec.?renewTime == oldObject.spec.?renewTime
    && object.spec.?strategy == oldObject.spec.?strategy
    && object.spec.?preferredHolder == oldObject.spec.?preferredHolder
{{- end -}}

{{/* How a grant must be written, by whomever. Counts where `isGrant` is true: a take that writes the grant annotation. */}}
{{- define "leasehold.policies.takeRules" -}}
- expression: >-
    !variables.isGrant || (variables.newHolder != variables.oldHolder && variables.newHolder != 'leasehold.dev/missing'
    && variables.newHolder.matches('^[A-Za-z0-9]([-A-Za-z0-9._:@]{0,251}[A-Za-z0-9])?/[-0-9A-Za-z]{1,64}$'))
  messageExpression: "'holderIdentity must be <claimant>/<uid>, a new one for each grant, not ' + variables.newHolder"
- expression: >-
    !variables.isGrant || variables.newCount == (variables.oldCount >= 2147483647 ? 0 : variables.oldCount + 1)
  messageExpression: "'a grant adds one to leaseTransitions: write ' + string(variables.oldCount >= 2147483647 ? 0 : variables.oldCount + 1)"
- expression: "!variables.isGrant || variables.newCounts"
  messageExpression: >-
    'a grant is written with the annotation leasehold.dev/grant: v1;' + variables.uid + ';' + string(variables.newCount)
    + ';<token>;<hold>;<pod name>/<pod uid>;' + variables.newHolder + '. Take locks with leasehold, not by hand'
- expression: "!variables.isGrant || !variables.newCounts || (variables.newToken > variables.revision && variables.newToken > variables.lastToken && variables.newToken <= 9007199254740991)"
  messageExpression: >-
    'the token of a grant is above every earlier one: it must be the resourceVersion read plus one, here '
    + string((variables.revision > variables.lastToken ? variables.revision : variables.lastToken) + 1) + ', not ' + string(variables.newToken)
- expression: "!variables.isGrant || variables.operator || variables.newToken <= variables.highest || variables.mayRevoke"
  messageExpression: >-
    'token ' + string(variables.newToken) + ' is too far ahead of the revision ' + string(variables.revision)
    + ': let somebody with the verb "revoke" on distributedlocks/' + variables.lock + ' take the lock once, then all may;'
    + ' after an etcd restore use etcdutl --bump-revision'
- expression: >-
    !variables.isGrant || !variables.newCounts || (variables.operator ? variables.newHold != 'Heartbeat' && variables.seconds >= 1 && variables.seconds <= 86400
    : variables.newHold == 'Heartbeat' && variables.seconds >= 1 && variables.seconds <= 3600)
  message: >-
    takers write grants of hold Heartbeat, with leaseDurationSeconds from 1 to 3600; Fixed and Pod holds are the
    operator's to write: make a LockClaim for one
- expression: "!variables.isGrant || !variables.newCounts || variables.operator || variables.newPod == variables.me"
  messageExpression: >-
    variables.me == '/' ? 'your credentials are not bound to a Pod, so your grant must name none (/), not '
    + variables.newPod + ': use the token that Kubernetes mounts into the Pod'
    : 'a Pod takes a lock for itself only: your grant must name ' + variables.me + ', not ' + variables.newPod
  reason: Forbidden
- expression: >-
    !variables.isGrant || (variables.oldHolder == '' ? variables.newEnded == variables.oldEnded
    : variables.tellsTheEnd && variables.how in ['Expired', 'Revoked'] && variables.endedParts[5] == variables.newHolder)
  messageExpression: >-
    'who replaces a holder says so in the same write, by the annotation leasehold.dev/ended: v1;' + variables.uid + ';'
    + string(variables.oldCount) + ';' + (variables.oldCounts ? variables.oldParts[3] : '0') + ';Expired|Revoked;' + variables.newHolder + ';<reason>'
- expression: "!variables.isGrant || !variables.operator || variables.oldHolder == ''"
  message: "the operator ends a holder first and takes a free lock only: two writes"
- expression: >-
    !variables.isGrant || variables.oldNext == '' || variables.newNext != variables.oldNext
    || variables.newHolder.endsWith('/' + variables.oldNext.substring(variables.oldNext.lastIndexOf('/') + 1))
  messageExpression: "'it is the turn of ' + variables.oldNext + ': queue up with a LockClaim (leasehold run does)'"
  reason: Forbidden
{{- end -}}

{{/* Who keeps and gives back a grant, and what of it stays. Counts where `isOurs` is true: the old grant is one of ours. */}}
{{- define "leasehold.policies.keepRules" -}}
- expression: "!variables.isOurs || variables.isTake || variables.newGrant == variables.oldGrant"
  message: "a renewal or a release keeps the annotation leasehold.dev/grant as it is: token, hold and Pod of a grant never change"
- expression: "!variables.isOurs || variables.isTake || variables.newCount == variables.oldCount"
  message: "a renewal or a release keeps leaseTransitions as it is"
- expression: >-
    !variables.isOurs || !variables.staysHeld || variables.sameSpec
    || (variables.oldParts[4] == 'Heartbeat' ? variables.oldPod == variables.me : variables.operator)
  messageExpression: >-
    variables.oldParts[4] == 'Heartbeat' ? 'only its holder ' + variables.oldHolder + ' (Pod ' + variables.oldPod + ') renews this lease; you are '
    + request.userInfo.username + ' (Pod ' + variables.me + ')'
    : 'the operator keeps a hold of type ' + variables.oldParts[4] + ': change or delete its LockClaim'
  reason: Forbidden
- expression: >-
    !variables.isOurs || !variables.staysHeld || variables.sameSpec
    || (variables.seconds >= 1 && variables.seconds <= (variables.operator ? 86400 : 3600))
  message: "leaseDurationSeconds must be from 1 to 3600"
- expression: >-
    !variables.isOurs || !variables.isEnd || variables.operator || variables.mayRevoke
    || (variables.oldParts[4] == 'Heartbeat' && variables.oldPod == variables.me && variables.how == 'Released')
  messageExpression: >-
    variables.oldParts[4] == 'Heartbeat' ? 'only its holder ' + variables.oldHolder + ' (Pod ' + variables.oldPod + ') gives this lease back, by Released; you are '
    + request.userInfo.username + ' (Pod ' + variables.me + '). To end the hold of another you need the verb "revoke" on distributedlocks/' + variables.lock
    : 'the operator keeps a hold of type ' + variables.oldParts[4] + ': delete its LockClaim to give it back'
  reason: Forbidden
- expression: "!variables.isOurs || !variables.isEnd || variables.tellsTheEnd || variables.mayRevoke"
  messageExpression: >-
    'who ends a grant says so in the same write, by the annotation leasehold.dev/ended: v1;' + variables.uid + ';'
    + string(variables.oldCount) + ';' + variables.oldParts[3] + ';Released;<by>;<reason>'
{{- end -}}
