package cli

import (
	"context"
	"io"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/cli-runtime/pkg/printers"
	restclient "k8s.io/client-go/rest"
)

// tableAccept asks a server for a list as the table that kubectl shows.
const tableAccept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

// GetTable gets the table that `kubectl get` would show for path, an object or a list, with query's
// parameters.
func GetTable(ctx context.Context, config *restclient.Config, path string, query url.Values) (*metav1.Table, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, err
	}
	config = restclient.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.GroupVersion = &metav1.Unversioned
	client, err := restclient.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, err
	}
	table := &metav1.Table{}
	request := client.Get().AbsPath(path).SetHeader("Accept", tableAccept)
	for name, values := range query {
		for _, value := range values {
			request.Param(name, value)
		}
	}
	return table, request.Do(ctx).Into(table)
}

// PrintTable prints the table that `kubectl get` would show for the list at path.
func PrintTable(ctx context.Context, w io.Writer, config *restclient.Config, path string) error {
	table, err := GetTable(ctx, config, path, nil)
	if err != nil {
		return err
	}
	if len(table.Rows) == 0 {
		_, err := io.WriteString(w, "No resources found\n")
		return err
	}
	return WriteTable(w, table, false)
}

// WriteTable writes a table as kubectl does, with all columns if wide.
func WriteTable(w io.Writer, table *metav1.Table, wide bool) error {
	out := printers.GetNewTabWriter(w)
	if err := printers.NewTablePrinter(printers.PrintOptions{Wide: wide}).PrintObj(table, out); err != nil {
		return err
	}
	return out.Flush()
}
