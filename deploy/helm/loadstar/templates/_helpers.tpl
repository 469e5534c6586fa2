{{- define "loadstar.labels" -}}
app.kubernetes.io/name: loadstar
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "loadstar.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "loadstar.pod" -}}
serviceAccountName: {{ .Release.Name }}-loadstar
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "loadstar.server.env" -}}
- name: LOADSTAR_SERVE_STORE_DATABASE
  valueFrom: {secretKeyRef: {name: {{ .Values.server.databaseSecret }}, key: url}}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ .Values.server.blobsSecret }}, key: AWS_ACCESS_KEY_ID}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ .Values.server.blobsSecret }}, key: AWS_SECRET_ACCESS_KEY}}
{{- end }}

{{- define "loadstar.probes" -}}
startupProbe: {httpGet: {path: /healthz, port: watch}, periodSeconds: 2, failureThreshold: 60}
livenessProbe: {httpGet: {path: /healthz, port: watch}, periodSeconds: 10, failureThreshold: 6}
readinessProbe: {httpGet: {path: /readyz, port: watch}, periodSeconds: 5}
{{- end }}
