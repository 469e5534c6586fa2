// Package helm tests the chart in deploy/helm. It renders the chart with Helm's library and
// decodes every object strictly, so that an unknown Kubernetes field is an error.
package helm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
)

const folder = "../../deploy/helm/loadstar"

// decode returns the objects of a rendered chart.
func decode(t *testing.T, rendered map[string]string) (all []runtime.Object) {
	t.Helper()
	if err := monitoring.AddToScheme(scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	for name, text := range rendered {
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		for _, one := range strings.Split(text, "\n---") {
			if strings.TrimSpace(strings.Trim(one, "-\n ")) == "" {
				continue
			}
			o, _, err := strict.Decode([]byte(one), nil, nil)
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, one)
				continue
			}
			all = append(all, o)
		}
	}
	return all
}

func render(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	c, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	v, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "fleet", Namespace: "energy", IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, v)
}

func read(t *testing.T, name string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	values, err := chartutil.ReadValues(text)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func TestChart(t *testing.T) {
	for _, c := range []struct {
		values string
		kinds  []string
	}{
		{"server.yaml", []string{"ConfigMap", "Deployment", "PodDisruptionBudget", "PodDisruptionBudget", "Service", "Service", "ServiceAccount", "StatefulSet"}},
		{"all.yaml", []string{
			"ConfigMap", "ConfigMap", "Deployment", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "NetworkPolicy", "PersistentVolumeClaim",
			"PodDisruptionBudget", "PodDisruptionBudget", "PodMonitor", "Service", "Service", "ServiceAccount", "ServiceMonitor", "StatefulSet",
		}},
		{"agents.yaml", []string{"ConfigMap", "DaemonSet", "ServiceAccount"}},
	} {
		t.Run(c.values, func(t *testing.T) {
			rendered, err := render(t, read(t, c.values))
			if err != nil {
				t.Fatal(err)
			}
			var kinds []string
			for _, o := range decode(t, rendered) {
				kinds = append(kinds, o.GetObjectKind().GroupVersionKind().Kind)
				check(t, o)
			}
			slices.Sort(kinds)
			if !slices.Equal(kinds, c.kinds) {
				t.Errorf("objects %q, want %q", kinds, c.kinds)
			}
		})
	}
}

// check checks that an object satisfies what the documentation promises.
func check(t *testing.T, o runtime.Object) {
	t.Helper()
	switch o := o.(type) {
	case *appsv1.StatefulSet:
		pod(t, o.Name, &o.Spec.Template, o.Spec.Selector.MatchLabels)
		container := o.Spec.Template.Spec.Containers[0]
		if p := container.ReadinessProbe; p == nil || p.HTTPGet == nil || p.HTTPGet.Path != "/readyz" {
			t.Errorf("%s has no readiness probe on /readyz", o.Name)
		}
		if !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/data/pki" && m.ReadOnly }) {
			t.Errorf("%s does not mount the issuer read-only", o.Name)
		}
	case *appsv1.Deployment:
		pod(t, o.Name, &o.Spec.Template, o.Spec.Selector.MatchLabels)
	case *appsv1.DaemonSet:
		pod(t, o.Name, &o.Spec.Template, o.Spec.Selector.MatchLabels)
	case *autoscalingv2.HorizontalPodAutoscaler:
		if o.Spec.ScaleTargetRef.Kind != "StatefulSet" || *o.Spec.MinReplicas < 2 {
			t.Errorf("autoscaler of %v with at least %d", o.Spec.ScaleTargetRef, *o.Spec.MinReplicas)
		}
	case *policyv1.PodDisruptionBudget:
		if o.Spec.MaxUnavailable == nil || o.Spec.MaxUnavailable.IntVal != 1 {
			t.Errorf("%s lets more than one pod go", o.Name)
		}
	case *networkingv1.NetworkPolicy:
		for _, rule := range o.Spec.Ingress {
			for _, p := range rule.Ports {
				if p.Port.IntVal == 7444 && len(rule.From) == 0 {
					t.Errorf("%s opens the metrics, which have no authentication, to everybody", o.Name)
				}
			}
		}
	case *corev1.ConfigMap:
		for key, text := range o.Data {
			if strings.Contains(text, "postgres://") {
				t.Errorf("%s has an address with credentials in %s", o.Name, key)
			}
		}
	}
}

// pod checks the common settings of all pods.
func pod(t *testing.T, name string, p *corev1.PodTemplateSpec, selector map[string]string) {
	t.Helper()
	for k, v := range selector {
		if p.Labels[k] != v {
			t.Errorf("%s: the selector %s=%s does not match its pods", name, k, v)
		}
	}
	s := p.Spec.SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil {
		t.Errorf("%s may run as root or without seccomp", name)
	}
	volumes := map[string]bool{}
	for _, v := range p.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, c := range p.Spec.Containers {
		x := c.SecurityContext
		if x == nil || x.ReadOnlyRootFilesystem == nil || !*x.ReadOnlyRootFilesystem || x.AllowPrivilegeEscalation == nil || *x.AllowPrivilegeEscalation || len(x.Capabilities.Drop) == 0 {
			t.Errorf("%s: container %s is not confined", name, c.Name)
		}
		if c.Resources.Requests == nil || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s: container %s has no requests or no limit of memory", name, c.Name)
		}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] && m.Name != "data" {
				t.Errorf("%s mounts %s, which is no volume", name, m.Name)
			}
		}
	}
	if p.Spec.AutomountServiceAccountToken == nil || *p.Spec.AutomountServiceAccountToken {
		t.Errorf("%s has a token of the cluster", name)
	}
}

// TestRefusals checks that the chart names missing values.
func TestRefusals(t *testing.T) {
	for want, values := range map[string]map[string]any{
		"server.hosts":          {"server": map[string]any{"hosts": []any{}}},
		"server.databaseSecret": {"server": map[string]any{"hosts": []any{"a.example"}}},
		"agent.tokenSecret":     {"server": map[string]any{"enabled": false}, "agent": map[string]any{"enabled": true, "server": "https://a.example:7443"}},
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want an error that names %s", values, err, want)
		}
	}
}
