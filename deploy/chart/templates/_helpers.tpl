{{- define "tidewaiter.labels" -}}
app.kubernetes.io/name: tidewaiter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "tidewaiter.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}
{{- define "tidewaiter.trialLabels" -}}
app.kubernetes.io/name: tidewaiter-etcd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "tidewaiter.etcdServers" -}}
{{- if .Values.etcd.trial.enabled -}}
{{- if or .Values.etcd.servers .Values.etcd.secretName }}{{ fail "etcd.trial.enabled does not go with etcd.servers or etcd.secretName" }}{{ end -}}
{{- range $i := until 3 }}{{ if $i }},{{ end }}http://{{ $.Release.Name }}-etcd-{{ $i }}.{{ $.Release.Name }}-etcd.{{ $.Release.Namespace }}.svc:2379{{ end -}}
{{- else -}}
{{- join "," .Values.etcd.servers -}}
{{- end -}}
{{- end }}
