package read

const (
	squareFoot = 0.09290304  // square metres
	ton        = 3.516852842 // kW of cooling
	kiloBTU    = 0.293071070 // kW, per hour
)

// nrelStatics maps our names of static values to the column names of each release, and to
// factors that convert the values to square metres or kW.
var nrelStatics = []struct {
	name   string
	theirs []nrelColumn
}{
	{"floor_area", []nrelColumn{{"in.sqft..ft2", squareFoot}, {"in.sqft", squareFoot}}},
	{"wall_area", []nrelColumn{
		{"out.params.ext_wall_area..m2", 1},
		{"out.params.ext_wall_area", 1},
		{"out.params.wall_area_above_grade_exterior..ft2", squareFoot},
		{"out.params.wall_area_above_grade_exterior_ft_2", squareFoot},
	}},
	{"window_area", []nrelColumn{
		{"out.params.ext_window_area..m2", 1},
		{"out.params.ext_window_area", 1},
		{"out.params.window_area..ft2", squareFoot},
		{"out.params.window_area_ft_2", squareFoot},
	}},
	{"roof_area", []nrelColumn{
		{"out.params.ext_roof_area..m2", 1},
		{"out.params.ext_roof_area", 1},
		{"out.params.roof_area..ft2", squareFoot},
		{"out.params.roof_area_ft_2", squareFoot},
	}},
	{"cooling_capacity", []nrelColumn{
		{"out.params.cooling_equipment_capacity..tons", ton},
		{"out.params.cooling_equipment_capacity", ton},
		{"out.params.size_cooling_system_primary..kbtu_per_hr", kiloBTU},
	}},
	{"heating_capacity", []nrelColumn{
		{"out.params.heating_equipment..kbtu_per_hr", kiloBTU},
		{"out.params.heating_equipment", kiloBTU},
		{"out.params.size_heating_system_primary..kbtu_per_hr", kiloBTU},
	}},
	{"year_built", []nrelColumn{{"in.year_built", 1}}},
}

type nrelColumn struct {
	name   string
	factor float64
}

// nrelLabels maps our names of labels to the column names of each release.
var nrelLabels = []struct {
	name   string
	theirs []string
}{
	{"building_type", []string{"in.comstock_building_type", "in.building_type", "in.geometry_building_type_recs"}},
	{"state", []string{"in.state"}},
	{"county", []string{"in.nhgis_county_gisjoin", "in.county"}},
}

// nrelWeather maps our names of weather columns to a prefix of NREL's column names.
var nrelWeather = []struct{ name, theirs string }{
	{"temperature", "Dry Bulb Temperature"},
	{"wind", "Wind Speed"},
	{"humidity", "Relative Humidity"},
	{"solar", "Global Horizontal Radiation"},
	{"direct", "Direct Normal Radiation"},
	{"diffuse", "Diffuse Horizontal Radiation"},
	{"wind_direction", "Wind Direction"},
}
