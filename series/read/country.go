package read

import "fmt"

// NoCountry is given in place of a country code if no public holidays apply.
const NoCountry = "none"

// HolidaysOf returns the country whose public holidays apply. This is the given country or, if
// there is none, the country of the given zone. The note states whether the country was
// guessed.
func HolidaysOf(country, zone string) (code, note string) {
	if country == NoCountry {
		return "", ""
	}
	if country == "" && zoneCountry[zone] != "" {
		return zoneCountry[zone], fmt.Sprintf("country: %s, guessed from the zone, for public holidays (otherwise --country CODE, or none)", zoneCountry[zone])
	}
	return country, ""
}

// zoneCountry maps zones to the country or region to which they belong, if its public
// holidays are known.
var zoneCountry = map[string]string{
	"Europe/Berlin": "DE", "Europe/Busingen": "DE", "Europe/Vienna": "AT", "Europe/Zurich": "CH", "Europe/Paris": "FR", "Europe/Madrid": "ES", "Atlantic/Canary": "ES",
	"Europe/Amsterdam": "NL", "Europe/Brussels": "BE", "Europe/London": "GB", "Europe/Dublin": "IE",
	"Europe/Rome": "IT", "Europe/Copenhagen": "DK", "Europe/Oslo": "NO", "Europe/Stockholm": "SE", "Europe/Warsaw": "PL",
	"Europe/Prague": "CZ", "Europe/Bratislava": "SK", "Europe/Bucharest": "RO", "Europe/Sofia": "BG", "Europe/Athens": "GR",
	"Europe/Zagreb": "HR", "Europe/Ljubljana": "SI", "Europe/Riga": "LV", "Europe/Vilnius": "LT",
	"America/New_York": "US", "America/Detroit": "US", "America/Chicago": "US", "America/Denver": "US", "America/Phoenix": "US",
	"America/Los_Angeles": "US", "America/Anchorage": "US", "Pacific/Honolulu": "US",
	"America/Toronto": "CA", "America/Vancouver": "CA", "America/Edmonton": "CA", "America/Winnipeg": "CA", "America/Halifax": "CA",
	"Australia/Sydney": "AU-NSW", "Australia/Melbourne": "AU-VIC", "Australia/Brisbane": "AU-QLD", "Australia/Adelaide": "AU-SA",
	"Australia/Perth": "AU-WA", "Australia/Hobart": "AU-TAS", "Australia/Darwin": "AU-NT",
	"Pacific/Auckland": "NZ", "Asia/Tokyo": "JP", "America/Sao_Paulo": "BR", "America/Argentina/Buenos_Aires": "AR", "Africa/Johannesburg": "ZA",
}
