{{/* The name of everything of this release in its namespace: the release's, with the chart's where that says nothing of it. */}}
{{- define "leasehold.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 30 | trimSuffix "-") .Chart.Name -}}
{{- end -}}
{{- end -}}

{{/*
The name of what has no namespace. Two releases of the same name in two namespaces must not meet: the namespace is added
after a dot, which no namespace's name has, unless it is the name itself (the usual `-n leasehold`).
*/}}
{{- define "leasehold.clusterName" -}}
{{- $fullname := include "leasehold.fullname" . -}}
{{- if eq $fullname .Release.Namespace -}}
{{- $fullname -}}
{{- else -}}
{{- printf "%s.%s" $fullname .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{/* What never changes: a Deployment's selector can't. */}}
{{- define "leasehold.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The labels of every object. */}}
{{- define "leasehold.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "leasehold.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: leasehold
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The operator's service account. */}}
{{- define "leasehold.serviceAccountName" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "\n\nserviceAccount.create is false: say by serviceAccount.name which account the operator has.\n" -}}
{{- end -}}
{{- .Values.serviceAccount.name | default (include "leasehold.fullname" .) -}}
{{- end -}}

{{/* The operator as the API server knows it: policies ask for it. */}}
{{- define "leasehold.operatorUser" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "leasehold.serviceAccountName" .) -}}
{{- end -}}

{{/* The Lease of the operator's election, in the release's namespace. */}}
{{- define "leasehold.electionLease" -}}
{{- printf "%s-operator" (include "leasehold.fullname" .) -}}
{{- end -}}

{{/* The image, of the operator and of injected sidecars: by digest where there is one. */}}
{{- define "leasehold.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* A duration, such as 15s, in milliseconds. */}}
{{- define "leasehold.milliseconds" -}}
{{- $text := . | default "" | toString -}}
{{- $number := regexFind "[1-9][0-9]*" $text | int64 -}}
{{- if hasSuffix "ms" $text -}}
{{- $number -}}
{{- else if hasSuffix "m" $text -}}
{{- mul $number 60000 -}}
{{- else -}}
{{- mul $number 1000 -}}
{{- end -}}
{{- end -}}

{{/* Times of the election that do not fit together are refused here: a replica would refuse them at each start. */}}
{{- define "leasehold.checkElection" -}}
{{- with .Values.leaderElection -}}
{{- $lease := include "leasehold.milliseconds" .leaseDuration | int64 -}}
{{- $renew := include "leasehold.milliseconds" .renewDeadline | int64 -}}
{{- $retry := include "leasehold.milliseconds" .retryPeriod | int64 -}}
{{- if or (lt $lease 1000) (gt $lease 3600000) (mod $lease 1000) -}}
{{- fail (printf "\n\nleaderElection.leaseDuration is %v: it must be whole seconds, from 1s to 60m.\n" .leaseDuration) -}}
{{- end -}}
{{- if or (lt (mul $renew 5) (mul $lease 3)) (gt (mul $renew 5) (mul $lease 4)) -}}
{{- fail (printf "\n\nleaderElection.renewDeadline is %v: it must be three to four fifths of leaseDuration, which is %s.\n" .renewDeadline .leaseDuration) -}}
{{- end -}}
{{- if or (lt $retry 1) (gt (mul $retry 2) $renew) -}}
{{- fail (printf "\n\nleaderElection.retryPeriod is %v: it must be above 0 and at most half of renewDeadline, which is %s.\n" .retryPeriod .renewDeadline) -}}
{{- end -}}
{{- end -}}
{{- end -}}
