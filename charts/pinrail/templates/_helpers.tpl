{{- define "pinrail.name" -}}
{{ printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "pinrail.selector" -}}
app.kubernetes.io/name: pinrail-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pinrail.labels" -}}
{{ include "pinrail.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "pinrail.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* What the operator may do: nothing but its status is written on users' own objects. */ -}}
{{- define "pinrail.rules" -}}
- apiGroups: [pinrail.dev]
  resources: [inferenceservices, modelmanifests]
  verbs: [get, list, watch]
- apiGroups: [pinrail.dev]
  resources: [inferenceservices/status]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [list, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- /* The release's objects that no namespace holds are named by its own, since two releases may be alike. */ -}}
{{- define "pinrail.clusterName" -}}
{{ printf "%s-%s" .Release.Namespace (include "pinrail.name" .) }}
{{- end }}

{{- /* Matchers of the operator's own series, as the PodMonitor labels them. */ -}}
{{- define "pinrail.operatorSeries" -}}
namespace="{{ .Release.Namespace }}",pod=~"{{ include "pinrail.name" . }}-.+"
{{- end }}

{{- /* What a policy's binding reaches: the namespaces that are watched. */ -}}
{{- define "pinrail.watched" -}}
{{- with .Values.watchNamespaces -}}
matchResources:
  namespaceSelector:
    matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: In, values: [{{ join ", " . }}]}
{{- end -}}
{{- end }}

{{- /* One file of dashboards/ as Grafana's JSON: panels in rows of two, each with what its file says. */ -}}
{{- define "pinrail.dashboard" -}}
{{- $source := dict "type" "prometheus" "uid" "${source}" }}
{{- $variables := list (dict "name" "source" "label" "Data source" "type" "datasource" "query" "prometheus") }}
{{- range .variables }}
{{- $variable := dict "name" .name "label" .label "type" "query" "datasource" $source "query" .query "refresh" 2 }}
{{- $all := dict "multi" true "includeAll" true "current" (dict "text" "All" "value" "$__all") }}
{{- $variables = append $variables (merge $variable $all) }}
{{- end }}
{{- $panels := list }}
{{- range $i, $panel := .panels }}
{{- $targets := list }}
{{- range $j, $target := $panel.targets }}
{{- $expr := $target.expr | replace "<engines>" $.engines | replace "<operator>" $.operator }}
{{- $target := dict "refId" (printf "%c" (add 65 $j)) "datasource" $source "expr" $expr "legendFormat" $target.legend }}
{{- $targets = append $targets $target }}
{{- end }}
{{- $place := dict "w" 12 "h" 8 "x" (mul 12 (mod $i 2)) "y" (mul 8 (div $i 2)) }}
{{- $field := dict "defaults" (dict "unit" $panel.unit "min" 0) "overrides" list }}
{{- $shape := dict "id" (add1 $i) "type" "timeseries" "gridPos" $place "datasource" $source "fieldConfig" $field }}
{{- $text := dict "title" $panel.title "description" $panel.description "targets" $targets }}
{{- $panels = append $panels (merge $shape $text) }}
{{- end }}
{{- $head := dict "title" .title "uid" .uid "tags" (list "pinrail") "schemaVersion" 39 "editable" true "refresh" "30s" }}
{{- $body := dict "time" (dict "from" "now-1h" "to" "now") "templating" (dict "list" $variables) "panels" $panels }}
{{- merge $head $body | toPrettyJson }}
{{- end }}
