{{/* Whether the policies are installed: admissionPolicies Audit or Deny. */}}
{{- define "leasehold.policies.on" -}}
{{- if has .Values.admissionPolicies (list "Audit" "Deny") -}}
true
{{- else if ne .Values.admissionPolicies "Off" -}}
{{- fail (printf "\n\nadmissionPolicies must be Off, Audit or Deny, not %q.\n" .Values.admissionPolicies) -}}
{{- else if .Values.strictMode -}}
{{- fail "\n\nstrictMode needs admissionPolicies Deny (or Audit): it is one of them, and with Off nothing would be strict.\n" -}}
{{- end -}}
{{- end -}}

{{/*
The API version that serves MutatingAdmissionPolicy; empty where none does. Every server that the chart runs on has
ValidatingAdmissionPolicy: where Helm does not know of it, it was not told of any server, and the version must do.
*/}}
{{- define "leasehold.policies.mutating" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- $offline := not (.Capabilities.APIVersions.Has (printf "%s/v1/ValidatingAdmissionPolicy" $group)) -}}
{{- if .Capabilities.APIVersions.Has (printf "%s/v1/MutatingAdmissionPolicy" $group) -}}
{{- $group }}/v1
{{- else if .Capabilities.APIVersions.Has (printf "%s/v1beta1/MutatingAdmissionPolicy" $group) -}}
{{- $group }}/v1beta1
{{- else if and $offline (semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version) -}}
{{- $group }}/v1
{{- end -}}
{{- end -}}

{{/* The name of a policy and of its binding. Takes (list CONTEXT WORD). */}}
{{- define "leasehold.policies.name" -}}
{{- printf "%s-%s" (include "leasehold.clusterName" (index . 0)) (index . 1) -}}
{{- end -}}

{{/*
The namespaces in which a policy counts: those that this release looks after, and never those of Kubernetes itself,
whose Leases keep the cluster alive.
*/}}
{{- define "leasehold.policies.namespaces" -}}
namespaceSelector:
  matchExpressions:
  {{- with .Values.watchNamespaces }}
  - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
  {{- end }}
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, kube-public, kube-node-lease]}
{{- end -}}

{{/* The binding of a ValidatingAdmissionPolicy. Takes (list CONTEXT WORD), and true for all namespaces. */}}
{{- define "leasehold.policies.binding" -}}
{{- $ctx := index . 0 -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ include "leasehold.policies.name" . }}
  labels:
    {{- include "leasehold.labels" $ctx | nindent 4 }}
spec:
  policyName: {{ include "leasehold.policies.name" . }}
  # Audit lets everything pass, and says in a warning to the client and in the server's audit log what Deny would refuse.
  validationActions: {{ if eq $ctx.Values.admissionPolicies "Deny" }}[Deny, Audit]{{ else }}[Warn, Audit]{{ end }}
  {{- if lt (len .) 3 }}
  matchResources:
    {{- include "leasehold.policies.namespaces" $ctx | nindent 4 }}
  {{- end }}
{{- end -}}

{{/*
Never in the way of a clean-up: the garbage collector (also of Pods' claims), namespace deletion, and storage migration.
Without credentials of their own for its controllers the controller manager does it under its own name.
*/}}
{{- define "leasehold.policies.notACleanUp" -}}
- name: not-a-clean-up
  expression: >-
    !(request.userInfo.username in [
    'system:serviceaccount:kube-system:generic-garbage-collector',
    'system:serviceaccount:kube-system:namespace-controller',
    'system:serviceaccount:kube-system:storage-version-migrator-controller',
    'system:kube-controller-manager'])
{{- end -}}

{{/* Who asks: the operator, and the Pod to which the caller's token is bound; '/' where it is bound to none. */}}
{{- define "leasehold.policies.who" -}}
- name: operator
  expression: "request.userInfo.username == '{{ include "leasehold.operatorUser" . }}'"
- name: me
  expression: >-
    has(request.userInfo.extra) && 'authentication.kubernetes.io/pod-name' in request.userInfo.extra
    && 'authentication.kubernetes.io/pod-uid' in request.userInfo.extra
    ? request.userInfo.extra['authentication.kubernetes.io/pod-name'][0] + '/'
    + request.userInfo.extra['authentication.kubernetes.io/pod-uid'][0] : '/'
{{- end -}}

{{/*
Who makes, changes or deletes a claim. A ticket in the queue is a Pod's, bound to its uid; a hold that the operator keeps
is an account's, since what applies YAML (GitOps, a pipeline) is another Pod each time.
*/}}
{{- define "leasehold.policies.maker" -}}
- {name: claim, expression: "object != null ? object : oldObject"}
- name: maker
  expression: >-
    variables.me == '/' || variables.claim.spec.hold.type != 'Heartbeat' ? request.userInfo.username
    : request.userInfo.username + '/' + variables.me.split('/')[1]
{{- end -}}
