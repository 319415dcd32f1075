{{/*
What the operator may do wherever it looks after locks. tests/chart/rbac.rs shows that each verb is used, and that no other
is missing.
*/}}
{{- define "leasehold.operatorRules" -}}
# Watched by every replica; read again before a silent holder is ended: `onHolderLost: Hold` may be new.
- apiGroups: [leasehold.dev]
  resources: [distributedlocks]
  verbs: [get, list, watch]
# The mirror of the Leases: the operator alone writes it.
- apiGroups: [leasehold.dev]
  resources: [distributedlocks/status]
  verbs: [update]
# Watched by every replica; read again after a write that was refused as late. Deleted: claims that are over
# (ttlSecondsAfterFinished), and those of waiters that were passed over or whose Pods are gone.
- apiGroups: [leasehold.dev]
  resources: [lockclaims]
  verbs: [get, list, watch, delete]
# Ticket, phase and token of a claim.
- apiGroups: [leasehold.dev]
  resources: [lockclaims/status]
  verbs: [update]
# The locks themselves: the operator makes them, ends silent holders, keeps the turn, and keeps the holds that have no
# process. Every write is a guarded update: no patch. They go with their lock: no delete.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, update]
# Metadata of Pods, to pass over the claims of Pods that are gone; read whole to see whether the containers of a holder
# have ended, for holds of type Pod.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# What happened to a lock, for people. Each event is an object of its own: no patch.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* The operator's account, as the subject of a binding. */}}
{{- define "leasehold.operatorSubject" -}}
- kind: ServiceAccount
  name: {{ include "leasehold.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{/* Fails where another release looks after the same locks: they would do everything twice, and refuse each other's writes. */}}
{{- define "leasehold.refuseRivals" -}}
{{- $mine := printf "%s-operator" (include "leasehold.clusterName" .) -}}
{{- $advice := "let each of them look after namespaces of its own: watchNamespaces" -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items -}}
{{- if and (eq (dig "labels" "app.kubernetes.io/part-of" "" .metadata) "leasehold") (hasSuffix "-operator" .metadata.name) (ne .metadata.name $mine) -}}
{{- fail (printf "another release looks after the locks of all namespaces (ClusterRole %s); %s" .metadata.name $advice) -}}
{{- end -}}
{{- end -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "Role" "" "").items -}}
{{- if and (eq (dig "labels" "app.kubernetes.io/part-of" "" .metadata) "leasehold") (hasSuffix "-operator" .metadata.name) (ne .metadata.name $mine) -}}
{{- if or (not $.Values.watchNamespaces) (has .metadata.namespace $.Values.watchNamespaces) -}}
{{- fail (printf "another release looks after the locks of namespace %s (Role %s there); %s" .metadata.namespace .metadata.name $advice) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
