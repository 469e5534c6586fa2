# Writes the union of four samples of the Smart-Grid Smart-City trial, which exist only as R objects, as one CSV table.
# 'loadstar data fetch sgsc' prints how to get the samples and converts the table. Needs base R only.
# Usage: Rscript sgsc-union.R SAMPLES union.csv.gz
# SAMPLES is a folder with four R objects of two public git repositories:
#   b_raw.rds  Sayani07/gravitas        inst/smart_meter_data_raw.rds   (unmodified SGSC rows, 50 homes)
#   c_tbl50.rds Sayani07/gravitas       data/smart_meter_50_tbl.rds     (50 homes; time stamps damaged, calendar_key intact)
#   f_sm50.rds Sayani07/paper-gravitas  data/sm_cust50.rds (a historical version, 50 homes)
#   h_sm50.rds Sayani07/paper-gravitas  data/sm_cust50.rds (another historical version, 50 homes)
# Output: one row per (home, half hour): meter_id,timestamp,general_kwh,controlled_kwh,gen_gross_kwh,gen_net_kwh,other_kwh
args <- commandArgs(trailingOnly = TRUE); ind <- args[1]; out <- args[2]
ld <- function(f) {
  p <- file.path(ind, f)                       # some of the .rds files were written with save(), not saveRDS()
  x <- tryCatch(readRDS(p), error = function(e) { en <- new.env(); get(load(p, envir = en)[1], envir = en) })
  u <- unclass(x)
  x <- as.data.frame(u[sapply(u, is.atomic)], stringsAsFactors = FALSE)
  names(x) <- tolower(names(x)); x$customer_id <- as.character(x$customer_id); x
}
num <- c("general_supply_kwh","controlled_load_kwh","gross_generation_kwh","net_generation_kwh","other_kwh")
b <- ld("b_raw.rds"); c0 <- ld("c_tbl50.rds"); f <- ld("f_sm50.rds"); h <- ld("h_sm50.rds")

# calendar_key names one half hour uniquely (keys run in blocks; they are not in time order across blocks).
# Build key -> seconds from the unmodified rows.
b <- b[order(b$customer_id, b$calendar_key), ]
b$t <- as.numeric(b$reading_datetime)
# Source quirk: at the start of daylight saving the clock label repeats 01:00/01:30; by key order the second
# pair is 02:00/02:30.
dup <- duplicated(b[, c("customer_id", "t")]); b$t[dup] <- b$t[dup] + 3600
map <- unique(b[, c("calendar_key", "t")]); stopifnot(!any(duplicated(map$calendar_key)))
m <- match(c0$calendar_key, map$calendar_key)
c0$t <- map$t[m]
cat("c rows whose key does not occur in b (time unknown, dropped):", sum(is.na(m)), "of", nrow(c0), "\n")
c0 <- c0[!is.na(c0$t), ]
f$t <- as.numeric(f$reading_datetime); h$t <- as.numeric(h$reading_datetime)

seen <- character(0); parts <- list()
for (x in list(b, f, h, c0)) {              # preference order: unmodified, then grouped copies, then key-repaired
  x <- x[!(x$customer_id %in% seen), ]; seen <- c(seen, unique(x$customer_id))
  parts[[length(parts) + 1]] <- x[, c("customer_id", "t", num)]
}
z <- do.call(rbind, parts); z <- z[order(as.numeric(z$customer_id), z$t), ]
z <- z[!duplicated(z[, c("customer_id", "t")]), ]
z$t <- format(as.POSIXct(z$t, origin = "1970-01-01", tz = "UTC"), "%Y-%m-%dT%H:%M:%S")
names(z) <- c("meter_id","timestamp","general_kwh","controlled_kwh","gen_gross_kwh","gen_net_kwh","other_kwh")
g <- gzfile(out, "w"); write.csv(z, g, row.names = FALSE, quote = FALSE); close(g)
cat("homes", length(unique(z$meter_id)), "rows", nrow(z), "\n")
