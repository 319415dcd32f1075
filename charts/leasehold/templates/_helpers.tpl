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
